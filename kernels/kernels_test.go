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

// fake is a catalogue of one image in memory.
func fake(manifest, image string) catalogue {
	return open(func(file string) ([]byte, error) {
		switch {
		case file == "manifest.json" && manifest != "":
			return []byte(manifest), nil
		case file == "k.fatbin" && image != "":
			return []byte(image), nil
		}
		return nil, os.ErrNotExist
	})
}

func TestImageMustBeItsManifests(t *testing.T) {
	manifest := `{"flags": ["-O3"], "images": [{"file": "k.fatbin", "sha256": "` + Sum([]byte("code")) + `", "entries": ["k"]}]}`
	data, err := fake(manifest, "code").bytes("k.fatbin")
	require.NoError(t, err)
	require.Equal(t, "code", string(data))
	_, err = fake(manifest, "other").bytes("k.fatbin")
	require.EqualError(t, err, "kernels: image k.fatbin has sha256 "+Sum([]byte("other"))+", its manifest says "+Sum([]byte("code")))
	_, err = fake(manifest, "").bytes("k.fatbin")
	require.EqualError(t, err, "kernels: image k.fatbin of the manifest cannot be read: file does not exist")
	_, err = fake("", "code").bytes("k.fatbin")
	require.EqualError(t, err, "kernels: no manifest: file does not exist")
	_, err = fake("{", "code").bytes("k.fatbin")
	require.ErrorContains(t, err, "kernels: manifest.json: ")
}

func TestCoversNamesWhatThereIs(t *testing.T) {
	for _, compute := range []int{80, 86, 87, 89, 90, 100, 120} {
		require.NoError(t, Covers(compute), compute)
	}
	require.EqualError(t, Covers(75), "kernels: the images hold sm_80, compute_80, sm_89, compute_89, sm_90a, none of which runs on compute capability 7.5")
	one := fake(`{"flags": ["-gencode=arch=compute_90a,code=sm_90a"]}`, "")
	require.NoError(t, one.covers(90))
	require.EqualError(t, one.covers(100), "kernels: the images hold sm_90a, none of which runs on compute capability 10.0")
	require.EqualError(t, one.covers(89), "kernels: the images hold sm_90a, none of which runs on compute capability 8.9")
	two := fake(`{"flags": ["-gencode=arch=compute_80,code=sm_80"]}`, "")
	require.NoError(t, two.covers(86))
	require.Error(t, two.covers(90), "machine code does not run on the next generation")
}
