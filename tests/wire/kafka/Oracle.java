import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.Readable;

/** Answers each line, a message as hex or as JSON, with what Apache's generated classes make of it. */
public final class Oracle {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = MAPPER.createObjectNode();
            try {
                answer(MAPPER.readTree(line), answer);
            } catch (InvocationTargetException failure) {
                answer.put("error", String.valueOf(failure.getCause()));
            } catch (Exception failure) {
                answer.put("error", String.valueOf(failure));
            }
            out.println(MAPPER.writeValueAsString(answer));
            out.flush();
        }
    }

    private static void answer(JsonNode given, ObjectNode answer) throws Exception {
        String name = given.get("class").asText();
        short version = (short) given.get("version").asInt();
        Class<?> type = Class.forName(name);
        Class<?> converter = Class.forName(name + "JsonConverter");
        Message message;
        if (given.has("hex")) {
            byte[] bytes = HexFormat.of().parseHex(given.get("hex").asText());
            message = (Message) type.getConstructor(Readable.class, short.class)
                .newInstance(new ByteBufferAccessor(ByteBuffer.wrap(bytes)), version);
        } else {
            message = (Message) converter.getMethod("read", JsonNode.class, short.class)
                .invoke(null, given.get("json"), version);
        }
        ByteBuffer written = MessageUtil.toByteBufferAccessor(message, version).buffer();
        byte[] bytes = new byte[written.remaining()];
        written.get(bytes);
        answer.put("hex", HexFormat.of().formatHex(bytes));
        answer.set("json", (JsonNode) converter.getMethod("write", type, short.class)
            .invoke(null, message, version));
    }
}
