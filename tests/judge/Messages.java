import java.lang.reflect.Constructor;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Reads and writes messages with Apache Kafka's own generated classes and compares the bytes. Each line of the file that is named: a
 * message, a version, `default` or `value`, and the bytes in hex. One check is a message in a version.
 */
public class Messages {
    static final String[] PLACES = {
        "org.apache.kafka.common.message.",
        "org.apache.kafka.common.metadata.",
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.share.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
        "org.apache.kafka.raft.generated.",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.",
    };

    static Constructor<?> find(String name) throws Exception {
        for (String place : PLACES) {
            for (String suffix : new String[] {"Data", ""}) {
                try {
                    return Class.forName(place + name + suffix).getDeclaredConstructor();
                } catch (ClassNotFoundException notHere) {
                    continue;
                }
            }
        }
        throw new Exception("Kafka has no such message");
    }

    static byte[] write(ApiMessage message, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer out = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(out), cache, version);
        return out.array();
    }

    static void check(String name, short version, boolean isDefault, byte[] bytes) throws Exception {
        ApiMessage message = (ApiMessage) find(name).newInstance();
        if (version < message.lowestSupportedVersion() || version > message.highestSupportedVersion()) {
            throw new Exception("not a version of it");
        }
        if (isDefault && !Arrays.equals(write(message, version), bytes)) {
            throw new Exception("another default: " + message);
        }
        ByteBufferAccessor in = new ByteBufferAccessor(ByteBuffer.wrap(bytes));
        message.read(in, version);
        if (in.remaining() != 0) {
            throw new Exception(in.remaining() + " bytes left of " + message);
        }
        if (!Arrays.equals(write(message, version), bytes)) {
            throw new Exception("other bytes for " + message);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> results = new TreeMap<>();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] words = line.split(" ", -1);
            String key = words[0] + " v" + words[1];
            try {
                check(words[0], Short.parseShort(words[1]), words[2].equals("default"), HexFormat.of().parseHex(words[3]));
                results.putIfAbsent(key, "");
            } catch (Throwable why) {
                results.put(key, why + " in " + words[3]);
            }
        }
        int failed = 0;
        for (Map.Entry<String, String> result : results.entrySet()) {
            if (!result.getValue().isEmpty()) {
                failed++;
                System.out.println("FAIL " + result.getKey() + ": " + result.getValue());
            }
        }
        System.out.println((results.size() - failed) + " passed, " + failed + " failed");
        System.exit(failed == 0 && !results.isEmpty() ? 0 : 1);
    }
}
