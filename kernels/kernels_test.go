package kernels

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The images must come from the sources beside them: a stale image fails here, without a compiler.
func TestManifestMatchesSources(t *testing.T) {
	m, err := Built()
	require.NoError(t, err)
	require.Equal(t, Flags, m.Flags, "run make kernels: the flags changed")
	sources, err := filepath.Glob("*.cu")
	require.NoError(t, err)
	require.Len(t, m.Images, len(sources), "run make kernels: a source came or went")
	total := 0
	for _, image := range m.Images {
		inputs, err := Inputs(".", image.Source)
		require.NoError(t, err)
		require.Equal(t, inputs, image.Inputs, "run make kernels: %s changed", image.Source)
		data, err := Bytes(image.File)
		require.NoError(t, err)
		total += len(data)
		for _, entry := range image.Entries {
			file, err := FileOf(entry)
			require.NoError(t, err)
			require.Equal(t, image.File, file, "kernel %s is in two images", entry)
		}
	}
	require.LessOrEqual(t, total, MaxTotalBytes)
	files, err := os.ReadDir("image")
	require.NoError(t, err)
	require.Len(t, files, len(m.Images)+1, "image/ holds a file that the manifest does not name")
}

func TestMissingKernelIsAnError(t *testing.T) {
	_, err := FileOf("no_such_kernel")
	require.EqualError(t, err, `kernels: no image has a kernel named "no_such_kernel"`)
	_, err = Bytes("none.fatbin")
	require.EqualError(t, err, `kernels: the manifest has no image "none.fatbin"`)
}
