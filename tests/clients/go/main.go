// franz-go with its defaults (idempotent, acks=all). See ../README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type header struct {
	name  string
	value []byte
}

func (h *header) UnmarshalJSON(data []byte) error {
	var value []byte
	pair := []any{&h.name, &value}
	err := json.Unmarshal(data, &pair)
	h.value = value
	return err
}

func (h header) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{h.name, h.value})
}

// A nil slice is null in JSON and an empty one is "": what the plan means by null and empty.
type record struct {
	Topic     string   `json:"topic,omitempty"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []header `json:"headers"`
}

func die(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func create(ctx context.Context, bootstrap, topic, partitions string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	die(err)
	defer client.Close()
	count, err := strconv.Atoi(partitions)
	die(err)
	_, err = kadm.NewClient(client).CreateTopic(ctx, int32(count), 1, nil, topic)
	die(err)
}

func produce(ctx context.Context, bootstrap, topic, codec, plan string) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(codecs[codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	die(err)
	defer client.Close()
	file, err := os.Open(plan)
	die(err)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	var lock sync.Mutex
	for index := 0; lines.Scan(); index++ {
		var r record
		die(json.Unmarshal(lines.Bytes(), &r))
		sent := &kgo.Record{Partition: r.Partition, Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: h.name, Value: h.value})
		}
		client.Produce(ctx, sent, func(done *kgo.Record, err error) {
			die(err)
			lock.Lock()
			defer lock.Unlock()
			fmt.Println(index, done.Partition, done.Offset)
		})
	}
	die(lines.Err())
	die(client.Flush(ctx))
}

func consume(ctx context.Context, bootstrap string, wanted []string) {
	ends := map[string]map[int32]int64{}
	from := map[string]map[int32]kgo.Offset{}
	left := 0
	for _, each := range wanted {
		parts := strings.Split(each, ":")
		partition, err := strconv.Atoi(parts[1])
		die(err)
		end, err := strconv.ParseInt(parts[2], 10, 64)
		die(err)
		if end == 0 {
			continue
		}
		if ends[parts[0]] == nil {
			ends[parts[0]], from[parts[0]] = map[int32]int64{}, map[int32]kgo.Offset{}
		}
		ends[parts[0]][int32(partition)] = end
		from[parts[0]][int32(partition)] = kgo.NewOffset().At(0)
		left++
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumePartitions(from))
	die(err)
	defer client.Close()
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	defer out.Flush()
	lines := json.NewEncoder(out)
	for left > 0 {
		fetches := client.PollFetches(ctx)
		die(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			line := record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, Headers: []header{}}
			for _, h := range r.Headers {
				line.Headers = append(line.Headers, header{h.Key, h.Value})
			}
			die(lines.Encode(line))
			if r.Offset+1 == ends[r.Topic][r.Partition] {
				left--
			}
		})
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	args := os.Args[2:]
	switch os.Args[1] {
	case "create":
		create(ctx, args[0], args[1], args[2])
	case "produce":
		produce(ctx, args[0], args[1], args[2], args[3])
	case "consume":
		consume(ctx, args[0], args[1:])
	}
}
