// kafkajs. It reads only in groups, so it has no `consume`. See ../README.md.
'use strict'

const fs = require('fs')
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs')
const snappy = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const zstd = require('@bokuweb/zstd-wasm')

CompressionCodecs[CompressionTypes.Snappy] = snappy
// kafkajs brings gzip only; these are what its documentation tells users to plug in.
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: encoder => lz4.compressFrame(encoder.buffer),
  decompress: buffer => lz4.decompressFrame(buffer),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async buffer => Buffer.from(zstd.decompress(buffer)),
})

const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy, lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD }
const unpack = text => (text === null ? null : Buffer.from(text, 'base64'))

function connect(bootstrap) {
  return new Kafka({ clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.ERROR })
}

async function create(bootstrap, topic, partitions) {
  const admin = connect(bootstrap).admin()
  await admin.connect()
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: Number(partitions), replicationFactor: 1 }] })
  await admin.disconnect()
}

async function produce(bootstrap, topic, codec, plan) {
  const producer = connect(bootstrap).producer()
  await producer.connect()
  const records = fs.readFileSync(plan, 'utf8').trim().split('\n').map(JSON.parse)
  // A send answers with the base offset of each partition's batch: a chunk of records of one partition is one batch.
  let chunk = []
  const flush = async () => {
    if (!chunk.length) return
    const partition = chunk[0].record.partition
    const messages = chunk.map(({ record }) => ({
      key: unpack(record.key),
      value: unpack(record.value),
      partition,
      headers: Object.fromEntries(record.headers.map(([name, value]) => [name, unpack(value)])),
    }))
    const [answer] = await producer.send({ topic, acks: -1, compression: CODECS[codec], messages })
    chunk.forEach(({ index }, at) => console.log(`${index} ${answer.partition} ${Number(answer.baseOffset) + at}`))
    chunk = []
  }
  for (let index = 0; index < records.length; index++) {
    const record = records[index]
    const large = record.value !== null && record.value.length > 100000
    if (large || (chunk.length && (chunk[0].record.partition !== record.partition || chunk.length >= 50))) await flush()
    chunk.push({ index, record })
    if (large) await flush()
  }
  await flush()
  await producer.disconnect()
}

// Reading back is done by another client; that kafkajs can find the ends is worth a check.
async function ends(bootstrap, topic) {
  const admin = connect(bootstrap).admin()
  await admin.connect()
  for (const { partition, low, high } of await admin.fetchTopicOffsets(topic)) console.log(`${partition} ${low} ${high}`)
  await admin.disconnect()
}

const [command, ...rest] = process.argv.slice(2)
zstd
  .init()
  .then(() => ({ create, produce, ends })[command](...rest))
  .catch(error => {
  console.error(error)
  process.exit(1)
})
