package hub

import "towline.dev/towline/hub/internal/store/backend"

// StandOn has the hub stand on a backend that outlives it.
func StandOn(o *Options, b backend.Backend) { o.backend = b }

// DefaultGrace is how long a hub waits for agents that had a session, unless it is told otherwise.
const DefaultGrace = defaultGrace
