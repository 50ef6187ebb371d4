// Package resource owns the text form of the public resources: strict YAML and JSON to proto with errors that name
// file, line and field, and proto back to YAML, JSON, names and JSONPath. It must not know the hub or the commands.
package resource
