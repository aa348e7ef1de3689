package autocast

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/seafan/seafan/graph"
)

// Report says what a pass did with every linear of the graph.
type Report struct {
	Pass    string     `json:"pass"` // fp8 or bf16
	Mode    string     `json:"mode"` // the recipe
	Linears []Decision `json:"linears"`
}

// Decision is about one linear.
type Decision struct {
	Weight string `json:"weight"`
	Node   string `json:"node"`
	Shape  []int  `json:"shape"` // of the weight
	FLOPs  int64  `json:"flops"` // of one forward pass
	Cast   bool   `json:"cast"`
	Reason string `json:"reason"`
}

// Cast lists the weights of the linears that the pass casts.
func (r *Report) Cast() []string {
	var names []string
	for _, d := range r.Linears {
		if d.Cast {
			names = append(names, d.Weight)
		}
	}
	return names
}

// some fails where no linear is cast.
func (r *Report) some() error {
	if len(r.Cast()) > 0 {
		return nil
	}
	if len(r.Linears) == 0 {
		return errors.New("the model has no linears")
	}
	d := r.Linears[0]
	return fmt.Errorf("it takes none of the %d linears of the model: the first, %s %s, stays since %s; Filter says which it takes", len(r.Linears), d.Weight, graph.Dims(d.Shape), d.Reason)
}

// Explain is the report as a table, a line for each linear.
func (r *Report) Explain() string {
	var sb strings.Builder
	var cast int
	var flops, all int64
	w := tabwriter.NewWriter(&sb, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "weight\tshape\tdecision\treason")
	for _, d := range r.Linears {
		what := "as it was"
		if d.Cast {
			what = r.Pass
			cast++
			flops += d.FLOPs
		}
		all += d.FLOPs
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", d.Weight, graph.Dims(d.Shape), what, d.Reason)
	}
	w.Flush() // a Builder does not fail
	share := 0.0
	if all > 0 {
		share = 100 * float64(flops) / float64(all)
	}
	return fmt.Sprintf("%s, %s: %d of %d linears, %.1f%% of their work\n", r.Pass, r.Mode, cast, len(r.Linears), share) + sb.String()
}

// JSON is the report as JSON.
func (r *Report) JSON() ([]byte, error) { return json.MarshalIndent(r, "", "  ") }
