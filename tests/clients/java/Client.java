import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client with its defaults (idempotent, acks=all). See ../README.md. */
public class Client {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[1]);
        switch (args[0]) {
            case "create" -> create(settings, args[2], Integer.parseInt(args[3]));
            case "produce" -> produce(settings, args[2], args[3], Path.of(args[4]));
            case "consume" -> consume(settings, Arrays.asList(args).subList(2, args.length));
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static byte[] unpack(JsonNode node) {
        return node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static String pack(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    private static void create(Properties settings, String topic, int partitions) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get(30, TimeUnit.SECONDS);
        }
    }

    private static void produce(Properties settings, String topic, String codec, Path plan) throws Exception {
        settings.put("compression.type", codec);
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes);
                BufferedReader lines = Files.newBufferedReader(plan)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                JsonNode record = JSON.readTree(line);
                RecordHeaders headers = new RecordHeaders();
                for (JsonNode header : record.get("headers")) {
                    headers.add(header.get(0).asText(), unpack(header.get(1)));
                }
                int partition = record.get("partition").asInt();
                sent.add(producer.send(new ProducerRecord<>(
                        topic, partition < 0 ? null : partition, unpack(record.get("key")), unpack(record.get("value")), headers)));
            }
            producer.flush();
            for (int index = 0; index < sent.size(); index++) {
                RecordMetadata done = sent.get(index).get(30, TimeUnit.SECONDS);
                System.out.println(index + " " + done.partition() + " " + done.offset());
            }
        }
    }

    private static void consume(Properties settings, List<String> wanted) throws Exception {
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        Map<TopicPartition, Long> ends = new HashMap<>();
        for (String each : wanted) {
            String[] parts = each.split(":");
            if (Long.parseLong(parts[2]) > 0) {
                ends.put(new TopicPartition(parts[0], Integer.parseInt(parts[1])), Long.parseLong(parts[2]));
            }
        }
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        PrintStream out = new PrintStream(new java.io.BufferedOutputStream(System.out, 1 << 20), false);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            consumer.assign(ends.keySet());
            consumer.seekToBeginning(ends.keySet());
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (!ends.isEmpty()) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("still waiting for " + ends);
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    ObjectNode line = JSON.createObjectNode();
                    line.put("topic", record.topic()).put("partition", record.partition()).put("offset", record.offset());
                    line.put("key", pack(record.key())).put("value", pack(record.value()));
                    ArrayNode headers = line.putArray("headers");
                    for (Header header : record.headers()) {
                        headers.addArray().add(header.key()).add(pack(header.value()));
                    }
                    out.println(line);
                    TopicPartition place = new TopicPartition(record.topic(), record.partition());
                    if (ends.containsKey(place) && record.offset() + 1 >= ends.get(place)) {
                        ends.remove(place);
                    }
                }
            }
        }
        out.flush();
    }
}
