package cli

import (
	"github.com/spf13/cobra"
)

func (a *app) joinCommand() *cobra.Command { return &cobra.Command{Use: "join"} }
