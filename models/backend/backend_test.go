package backend

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChoice(t *testing.T) {
	device, missing := findDevice()
	t.Setenv(Variable, "")
	b, err := Choose(Options{Name: Native})
	require.NoError(t, err)
	require.Equal(t, Native, b.Name)
	require.NotNil(t, b.Compile)
	_, err = Choose(Options{Name: "tpu"})
	require.EqualError(t, err, `backend must be native or cuda, got "tpu"`)

	var warned bytes.Buffer
	t.Setenv(Variable, Native)
	b, err = Choose(Options{Warn: &warned})
	require.NoError(t, err)
	require.Equal(t, "SEAFAN_BACKEND=native", b.Why)
	require.Empty(t, warned.String())
	t.Setenv(Variable, "abacus")
	b, err = Choose(Options{Warn: &warned})
	require.NoError(t, err)
	require.Equal(t, Native, b.Name)
	require.Equal(t, "warning: SEAFAN_BACKEND=\"abacus\" is not known (native, cuda); running natively\n", warned.String())
	warned.Reset()
	t.Setenv(Variable, CUDA)
	if missing == nil {
		for _, name := range []string{CUDA, ""} {
			b, err = Choose(Options{Name: name})
			require.NoError(t, err)
			require.Equal(t, CUDA, b.Name)
			require.Contains(t, b.Why, device)
		}
		return
	}
	require.NotEqual(t, "1", os.Getenv("REQUIRE_CUDA"), missing)
	b, err = Choose(Options{Warn: &warned})
	require.NoError(t, err)
	require.Equal(t, Native, b.Name)
	require.Equal(t, "warning: SEAFAN_BACKEND=cuda cannot be met: "+missing.Error()+"; running natively\n", warned.String())
	_, err = Choose(Options{Name: CUDA})
	require.EqualError(t, err, "backend cuda was asked for: "+missing.Error())
	t.Setenv(Variable, "")
	warned.Reset()
	b, err = Choose(Options{Warn: &warned})
	require.NoError(t, err)
	require.Equal(t, Native, b.Name)
	require.Empty(t, warned.String(), "nobody asked for a device")
}
