package ops

import (
	"fmt"
	"strings"

	"github.com/seafan/seafan/graph"
)

// Supported is what one op can do.
type Supported struct {
	Name     string
	Doc      string
	Native   bool // forward in Go (a view needs none)
	Gradient bool
	CUDA     bool // forward kernel
}

// cudaForward holds the names of the ops that have a kernel; package cuda's
// table is held to it by a test there.
var cudaForward = map[string]bool{
	"add":               true,
	"affine":            true,
	"amax":              true,
	"append_pages":      true,
	"append_rotary":     true,
	"attention":         true,
	"bf16_linear":       true,
	"cross_entropy":     true,
	"dequantize":        true,
	"embedding":         true,
	"experts":           true,
	"fp8_experts":       true,
	"fp8_linear":        true,
	"fp8_matmul":        true,
	"fp8_steps":         true,
	"fp8_weight_linear": true,
	"gated_rmsnorm":     true,
	"geglu":             true,
	"join":              true,
	"kda":               true,
	"kda_beta":          true,
	"kda_gate":          true,
	"kda_slots":         true,
	"l2norm":            true,
	"latent_kv":         true,
	"latent_query":      true,
	"latent_value":      true,
	"layernorm":         true,
	"nll":               true,
	"linear":            true,
	"merge_states":      true,
	"mul":               true,
	"paged_attention":   true,
	"quantize":          true,
	"reshape":           true,
	"rmsnorm":           true,
	"rotary":            true,
	"route":             true,
	"route_weights":     true,
	"sampling":          true,
	"short_conv":        true,
	"short_conv_slots":  true,
	"softcap":           true,
	"split":             true,
	"swiglu":            true,
}

// Support lists every registered op that models use, sorted by name.
func Support() []Supported {
	var list []Supported
	for _, name := range graph.Registered() {
		d, _ := graph.Lookup(name)
		if d.Doc == "" {
			continue
		}
		list = append(list, Supported{Name: name, Doc: d.Doc, Native: d.Native != nil || name == "reshape", Gradient: d.Grad != nil, CUDA: cudaForward[name]})
	}
	return list
}

// SupportTable is Support as the README shows it.
func SupportTable() string {
	var sb strings.Builder
	sb.WriteString("| op | what it computes | native | gradient | CUDA |\n|---|---|---|---|---|\n")
	mark := func(on bool) string {
		if on {
			return "yes"
		}
		return "-"
	}
	for _, s := range Support() {
		fmt.Fprintf(&sb, "| `%s` | %s | %s | %s | %s |\n", s.Name, s.Doc, mark(s.Native), mark(s.Gradient), mark(s.CUDA))
	}
	return sb.String()
}
