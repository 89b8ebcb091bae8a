module interop

go 1.26

require github.com/opendata-oss/opendata-go v0.4.0
