package client

import (
	"towline.dev/towline/pkg/rpc/clientconfig"
)

// fromFile fills in what a context of the configuration file says; what opts set wins.
func fromFile(opts Options) (Options, error) {
	path, err := clientconfig.Path(opts.Config)
	if err != nil {
		return opts, err
	}
	config, err := clientconfig.Load(path)
	if err != nil {
		return opts, err
	}
	found, err := config.Context(opts.ContextName)
	if err != nil {
		return opts, err
	}
	opts.Server = found.Server
	if len(opts.CA) == 0 {
		opts.CA = found.CAData
	}
	if opts.Token == "" {
		opts.Token = found.Token
	}
	if opts.Cert == nil {
		opts.Cert, err = found.Certificate()
	}
	return opts, err
}
