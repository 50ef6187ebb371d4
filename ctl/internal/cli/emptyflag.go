package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mayBeEmpty are flags that say nothing where they are empty, as if they were left out, and widen nothing by it, and one whose command refuses that in
// words of its own.
var mayBeEmpty = map[string]bool{"message": true, "sort-by": true, "set": true}

// noneEmpty refuses a flag that is given with nothing in it, as by a script one of whose variables is not set: left out it may mean all clusters, another
// hub, or no end.
func noneEmpty(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && !mayBeEmpty[f.Name] && isEmpty(f.Value) {
			err = usagef("%s: --%s is there, and empty; give it a value, or leave it out", cmd.CommandPath(), f.Name)
		}
	})
	return err
}

// noneNegative refuses a length of time below zero, which would end what is waited for at once, or never.
func noneNegative(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if length, readErr := time.ParseDuration(f.Value.String()); err == nil && f.Value.Type() == "duration" && readErr == nil && length < 0 {
			err = usagef("%s: --%s %s: is less than nothing", cmd.CommandPath(), f.Name, f.Value)
		}
	})
	return err
}

// isEmpty reports that a text, or one of several, is blank.
func isEmpty(v pflag.Value) bool {
	several, is := v.(pflag.SliceValue)
	if !is {
		return strings.TrimSpace(v.String()) == ""
	}
	for _, text := range several.GetSlice() {
		if strings.TrimSpace(text) == "" {
			return true
		}
	}
	return len(several.GetSlice()) == 0
}
