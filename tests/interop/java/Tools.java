// What the scenarios do again and again.

import java.io.BufferedReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

class Tools {
    static final int SOON = 10_000;
    static final int NOTHING = 500;

    static PulsarClient client;
    static String url;
    static String namespace;
    static BufferedReader orders;

    static String topic() {
        return "persistent://" + namespace + "/java-" + UUID.randomUUID();
    }

    static ConsumerBuilder<byte[]> consumer(String topic) {
        return client.newConsumer().topic(topic).subscriptionName("s")
            .acknowledgmentGroupTime(10, TimeUnit.MILLISECONDS)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    static List<MessageId> publish(String topic, int first, int count) throws Exception {
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (String value : numbered(first, count)) {
                ids.add(producer.send(value.getBytes()));
            }
        }
        return ids;
    }

    static void sendTogether(Producer<byte[]> producer, int count) throws Exception {
        for (String value : numbered(0, count)) {
            producer.sendAsync(value.getBytes());
        }
        producer.flush();
    }

    static List<String> numbered(int first, int count) {
        List<String> found = new ArrayList<>();
        for (int number = first; number < first + count; number++) {
            found.add("m" + number);
        }
        return found;
    }

    static Message<byte[]> receive(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> got = consumer.receive(SOON, TimeUnit.MILLISECONDS);
        if (got == null) {
            throw new IllegalStateException("no message came");
        }
        return got;
    }

    static List<Message<byte[]>> messages(Consumer<byte[]> consumer, int count) throws Exception {
        List<Message<byte[]>> found = new ArrayList<>();
        while (found.size() < count) {
            found.add(receive(consumer));
        }
        return found;
    }

    static List<String> values(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> found = new ArrayList<>();
        for (Message<byte[]> message : messages(consumer, count)) {
            found.add(text(message));
            consumer.acknowledge(message);
        }
        return found;
    }

    static List<String> drain(Consumer<byte[]> consumer) throws Exception {
        return drain(consumer, 0);
    }

    /** What comes until nothing comes for a while; so many are to come, which may take long. */
    static List<String> drain(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> found = new ArrayList<>();
        Message<byte[]> got;
        while ((got = next(consumer, found.size() < count)) != null) {
            found.add(text(got));
            consumer.acknowledge(got);
        }
        return found;
    }

    private static Message<byte[]> next(Consumer<byte[]> consumer, boolean due) throws Exception {
        return consumer.receive(due ? SOON : 2 * NOTHING, TimeUnit.MILLISECONDS);
    }

    /** Like drain, without acknowledgements: one under way could come after a seek, and count. */
    static List<String> shown(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> found = new ArrayList<>();
        Message<byte[]> got;
        while ((got = next(consumer, found.size() < count)) != null) {
            found.add(text(got));
        }
        return found;
    }

    static List<String> read(Reader<byte[]> reader) throws Exception {
        List<String> found = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            found.add(text(reader.readNext(SOON, TimeUnit.MILLISECONDS)));
        }
        return found;
    }

    static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    static boolean until(Callable<Boolean> holds) throws Exception {
        long end = System.nanoTime() + Duration.ofMillis(SOON).toNanos();
        while (!holds.call()) {
            if (System.nanoTime() > end) {
                return false;
            }
            Thread.sleep(20);
        }
        return true;
    }

    interface Action {
        void run() throws Exception;
    }

    static String raised(Action action) {
        try {
            action.run();
            return "nothing";
        } catch (ExecutionException failure) {
            return failure.getCause().getClass().getSimpleName();
        } catch (Exception failure) {
            return failure.getClass().getSimpleName();
        }
    }

    static void order(String what, String topic, String how) throws Exception {
        synchronized (orders) {
            say("!" + json(List.of(what, topic, how)));
            if (orders.readLine() == null) {
                throw new IllegalStateException("nobody is there");
            }
        }
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static String json(Object value) {
        StringBuilder text = new StringBuilder();
        if (value instanceof Map<?, ?> map) {
            map.forEach((key, one) -> text.append(",").append(json("" + key)).append(":").append(json(one)));
            return "{" + text.substring(Math.min(1, text.length())) + "}";
        } else if (value instanceof Iterable<?> list) {
            list.forEach(one -> text.append(",").append(json(one)));
            return "[" + text.substring(Math.min(1, text.length())) + "]";
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            return "" + value;
        }
        for (char letter : value.toString().toCharArray()) {
            text.append(letter < ' ' || letter > '~' || letter == '"' || letter == '\\'
                ? String.format("\\u%04x", (int) letter) : letter);
        }
        return "\"" + text + "\"";
    }
}
