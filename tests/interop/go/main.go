// The Go producer of the buffer: one JSON request on stdin, what it wrote as JSON on stdout.
//
// It works on the module's store in memory. The manifest to go on from comes with the request, and every object that
// was written goes back: whoever asks can put them wherever the others work.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/opendata-oss/opendata-go/buffer"
	"github.com/opendata-oss/opendata-go/objstore"
)

// In JSON, a []byte is base64.

type call struct {
	Entries  [][]byte `json:"entries"`
	Metadata []byte   `json:"metadata"`
}

type request struct {
	Compression string   `json:"compression"`
	Start       []byte   `json:"start"`   // the manifest that is there already, if any
	Batches     [][]call `json:"batches"` // each list of calls is flushed as one batch
}

type object struct {
	Location string `json:"location"`
	Data     []byte `json:"data"`
}

type answer struct {
	Manifests [][]byte `json:"manifests"` // after each batch
	Batches   []object `json:"batches"`
}

func main() {
	var asked request
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		fail(err)
	}
	given, err := produce(context.Background(), asked)
	if err != nil {
		fail(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(given); err != nil {
		fail(err)
	}
}

func produce(ctx context.Context, asked request) (answer, error) {
	config := buffer.DefaultProducerConfig()
	config.FlushInterval = 24 * time.Hour
	config.FlushSizeBytes = 1 << 40
	if asked.Compression == "zstd" {
		config.BatchCompression = buffer.CompressionZstd
	}
	store := objstore.NewInMemory()
	if asked.Start != nil {
		if err := store.Put(ctx, config.ManifestPath, asked.Start); err != nil {
			return answer{}, err
		}
	}
	producer := buffer.NewProducer(store, config)
	var given answer
	for _, calls := range asked.Batches {
		for _, one := range calls {
			if _, err := producer.Append(one.Entries, one.Metadata); err != nil {
				return answer{}, err
			}
		}
		if err := producer.Flush(ctx); err != nil {
			return answer{}, err
		}
		manifest, err := store.Get(ctx, config.ManifestPath)
		if err != nil {
			return answer{}, err
		}
		given.Manifests = append(given.Manifests, manifest.Data)
		entries, err := buffer.DecodeManifestEntries(manifest.Data)
		if err != nil {
			return answer{}, err
		}
		location := entries[len(entries)-1].Location
		batch, err := store.Get(ctx, location)
		if err != nil {
			return answer{}, err
		}
		given.Batches = append(given.Batches, object{location, batch.Data})
	}
	return given, producer.Close(ctx)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
