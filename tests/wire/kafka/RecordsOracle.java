import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.TimestampType;

/** Answers each line, a batch as hex or records as JSON, with what Apache's record classes make of it. */
public final class RecordsOracle {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = MAPPER.createObjectNode();
            try {
                JsonNode given = MAPPER.readTree(line);
                if (given.has("hex")) {
                    read(HEX.parseHex(given.get("hex").asText()), answer);
                } else {
                    write(given, answer);
                }
            } catch (Exception failure) {
                answer.put("error", String.valueOf(failure));
            }
            out.println(MAPPER.writeValueAsString(answer));
            out.flush();
        }
    }

    private static void read(byte[] bytes, ObjectNode answer) {
        ArrayNode batches = answer.putArray("batches");
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches()) {
            batch.ensureValid();
            ObjectNode found = batches.addObject();
            found.put("base", batch.baseOffset());
            found.put("next", batch.nextOffset());
            found.put("epoch", batch.partitionLeaderEpoch());
            found.put("latest", batch.maxTimestamp());
            found.put("codec", batch.compressionType().id);
            found.put("producer", batch.producerId());
            found.put("producerEpoch", batch.producerEpoch());
            found.put("sequence", batch.baseSequence());
            found.put("transactional", batch.isTransactional());
            ArrayNode records = found.putArray("records");
            for (Record record : batch) {
                record.ensureValid();
                ObjectNode one = records.addObject();
                one.put("offset", record.offset());
                one.put("timestamp", record.timestamp());
                one.put("key", record.hasKey() ? hex(record.key()) : null);
                one.put("value", record.hasValue() ? hex(record.value()) : null);
                ArrayNode headers = one.putArray("headers");
                for (Header header : record.headers()) {
                    headers.addArray().add(header.key())
                        .add(header.value() == null ? null : HEX.formatHex(header.value()));
                }
            }
        }
    }

    private static void write(JsonNode given, ObjectNode answer) {
        byte magic = (byte) given.get("magic").asInt();
        Compression codec = Compression.of(CompressionType.forId(given.get("codec").asInt())).build();
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 16), magic, codec,
            given.get("appendTime").asBoolean() ? TimestampType.LOG_APPEND_TIME
                : magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE : TimestampType.CREATE_TIME,
            given.get("base").asLong(),
            given.get("now").asLong());
        for (JsonNode record : given.get("records")) {
            Header[] headers = new Header[record.get("headers").size()];
            for (int at = 0; at < headers.length; at++) {
                JsonNode header = record.get("headers").get(at);
                headers[at] = new RecordHeader(header.get(0).asText(), bytes(header.get(1)));
            }
            builder.appendWithOffset(record.get("offset").asLong(), record.get("timestamp").asLong(),
                bytes(record.get("key")), bytes(record.get("value")), headers);
        }
        ByteBuffer built = builder.build().buffer();
        answer.put("hex", hex(built));
    }

    private static byte[] bytes(JsonNode hex) {
        return hex.isNull() ? null : HEX.parseHex(hex.asText());
    }

    private static String hex(ByteBuffer buffer) {
        byte[] found = new byte[buffer.remaining()];
        buffer.duplicate().get(found);
        return HEX.formatHex(found);
    }
}
