// Stubgen writes the assembly of the driver stub: one jump through a slot for every driver symbol of symbols.txt.
//
//	stubgen -symbols symbols.txt -out slots.S     writes the assembly for this machine's architecture
//	stubgen -list symbols.txt                     lists the symbols that the objects of cu and ops/cuda refer to
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("stubgen: ")
	symbols := flag.String("symbols", "", "file with one driver symbol a line")
	out := flag.String("out", "", "assembly file to write")
	list := flag.String("list", "", "file to write the list of symbols to")
	flag.Parse()
	var err error
	switch {
	case *list != "":
		err = writeList(*list)
	case *symbols != "" && *out != "":
		err = writeSlots(*symbols, *out, runtime.GOARCH)
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// writeList asks the build for the compiled archives and nm for their undefined cu* symbols, less those that one of
// them defines itself and less cuInit, which the stub writes in C.
func writeList(path string) error {
	text, err := exec.Command("go", "list", "-export", "-tags", "gpu", "-f", "{{.Export}}", "gorgonia.org/cu", "./ops/cuda").Output()
	if err != nil {
		return fmt.Errorf("go list -export: %w", err)
	}
	wanted, defined := map[string]bool{}, map[string]bool{"cuInit": true}
	line := regexp.MustCompile(`(?m)\b([A-Z]) (cu[A-Z]\w*)$`)
	for _, archive := range strings.Fields(string(text)) {
		// nm complains about the Go members of the archive and still lists the C ones.
		names, _ := exec.Command("nm", archive).Output()
		for _, m := range line.FindAllStringSubmatch(string(names), -1) {
			if m[1] == "U" {
				wanted[m[2]] = true
			} else {
				defined[m[2]] = true
			}
		}
	}
	var names []string
	for name := range wanted {
		if !defined[name] {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("no driver symbol found in %q", text)
	}
	slices.Sort(names)
	return os.WriteFile(path, []byte(strings.Join(names, "\n")+"\n"), 0o644)
}

func writeSlots(symbols, out, arch string) error {
	jumps := map[string]string{
		"amd64": "\tjmp *seafan_slots+%d(%%rip)\n",
		"arm64": "\tadrp x16, seafan_slots+%[1]d\n\tldr x16, [x16, :lo12:seafan_slots+%[1]d]\n\tbr x16\n",
	}
	jump, ok := jumps[arch]
	if !ok {
		return fmt.Errorf("no jump sequence for GOARCH %s: amd64 and arm64 are written", arch)
	}
	text, err := os.ReadFile(symbols)
	if err != nil {
		return err
	}
	names := strings.Fields(string(text))
	var b strings.Builder
	b.WriteString("/* Written by stubgen from symbols.txt. */\n\t.text\n")
	for i, name := range names {
		fmt.Fprintf(&b, "\t.globl %[1]s\n\t.type %[1]s, %%function\n%[1]s:\n", name)
		fmt.Fprintf(&b, jump, 8*i)
	}
	b.WriteString("\t.data\n\t.balign 8\n\t.globl seafan_slots\nseafan_slots:\n")
	for range names {
		b.WriteString("\t.quad seafan_no_device\n")
	}
	b.WriteString("\t.section .data.rel.ro,\"aw\"\n\t.balign 8\n\t.globl seafan_slot_names\nseafan_slot_names:\n")
	for i := range names {
		fmt.Fprintf(&b, "\t.quad .Lname%d\n", i)
	}
	b.WriteString("\t.section .rodata\n")
	for i, name := range names {
		fmt.Fprintf(&b, ".Lname%d:\t.asciz \"%s\"\n", i, name)
	}
	fmt.Fprintf(&b, "\t.balign 4\n\t.globl seafan_slot_count\nseafan_slot_count:\n\t.long %d\n", len(names))
	b.WriteString("\t.section .note.GNU-stack,\"\",%progbits\n")
	return os.WriteFile(out, []byte(b.String()), 0o644)
}
