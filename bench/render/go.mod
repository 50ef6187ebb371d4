module towline.dev/towline/bench/render

go 1.26.7
