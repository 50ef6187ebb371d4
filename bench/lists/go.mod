module towline.dev/towline/bench/lists

go 1.26.7
