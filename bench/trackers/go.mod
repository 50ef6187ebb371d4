module towline.dev/towline/bench/trackers

go 1.26.7
