// Does with Apache's Java client what the scenarios ask, a line of JSON for each call and each answer.
// Usage: Driver BOOTSTRAP. A failure that a broker answered is {"code": N}, any other {"error": TEXT}.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class Driver {
    static final int SECONDS = 20;
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, KafkaConsumer<byte[], byte[]>> members = new HashMap<>();
    static final Map<String, Events> events = new HashMap<>();
    static String bootstrap;
    static Admin admin;
    static Load load;

    // What a member is told of rebalances.
    static final class Events implements ConsumerRebalanceListener {
        final List<String> seen = new ArrayList<>();

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            seen.add("assigned");
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            seen.add("revoked");
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            seen.add("lost");
        }
    }

    // Produces numbers to two partitions in turn until it is ended; idempotent, and patient.
    static final class Load extends Thread {
        final AtomicInteger acknowledged = new AtomicInteger();
        final AtomicInteger failed = new AtomicInteger();
        final Semaphore room = new Semaphore(2_000);
        final String topic;
        volatile boolean ending;
        int sent;

        Load(String topic) {
            this.topic = topic;
        }

        @Override
        public void run() {
            Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "enable.idempotence", true,
                "linger.ms", 2, "reconnect.backoff.max.ms", 200, "retry.backoff.max.ms", 200);
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings,
                    new ByteArraySerializer(), new ByteArraySerializer())) {
                for (; !ending; sent++) {
                    room.acquireUninterruptibly();
                    producer.send(new ProducerRecord<>(topic, sent % 2, null, ("" + sent).getBytes()), (place, failure) -> {
                        room.release();
                        (failure == null ? acknowledged : failed).incrementAndGet();
                    });
                }
            }
        }

        List<Integer> end() throws InterruptedException {
            ending = true;
            join();
            return List.of(sent, failed.get());
        }
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
        members.values().forEach(KafkaConsumer::close);
        admin.close();
    }

    static Map<String, Object> answer(JsonNode call) {
        Map<String, Object> answer = new HashMap<>();
        try {
            answer.put("ok", called(call));
        } catch (Exception failure) {
            Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
            if (cause instanceof OffsetOutOfRangeException) {
                answer.put("code", (int) Errors.OFFSET_OUT_OF_RANGE.code());
            } else if (cause instanceof RecordTooLargeException) {
                answer.put("code", (int) Errors.MESSAGE_TOO_LARGE.code());
            } else if (cause instanceof ApiException && Errors.forException(cause) != Errors.UNKNOWN_SERVER_ERROR) {
                answer.put("code", (int) Errors.forException(cause).code());
            } else {
                answer.put("error", "" + cause);
            }
        }
        return answer;
    }

    static Object called(JsonNode call) throws Exception {
        String topic = call.path("topic").asText();
        TopicPartition place = new TopicPartition(topic, call.path("partition").asInt());
        KafkaConsumer<byte[], byte[]> member = members.get(call.path("member").asText());
        switch (call.get("op").asText()) {
            case "topics":
                return waited(admin.listTopics().names());
            case "create":
                return waited(admin.createTopics(List.of(
                    new NewTopic(topic, call.get("partitions").asInt(), (short) 1))).all());
            case "delete":
                return waited(admin.deleteTopics(List.of(topic)).all());
            case "produce":
                return produced(place, call);
            case "read":
                return read(place, call.get("offset").asLong(), call.get("count").asInt());
            case "times":
                return times(place, call.get("timestamps"));
            case "ends":
                try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
                    return List.of(consumer.beginningOffsets(List.of(place)).get(place),
                        consumer.endOffsets(List.of(place)).get(place));
                }
            case "join":
                String assignor = call.get("assignor").asText();
                // The default since 4.0 forgets all topics when no broker is reachable, with which a leader joins again.
                Map<String, Object> settings = new HashMap<>(Map.of("group.id", call.get("group").asText(),
                    "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                    "metadata.recovery.strategy", "none"));
                if (assignor.equals("server")) {
                    settings.put("group.protocol", "consumer");
                } else {
                    settings.putAll(Map.of("session.timeout.ms", call.get("session").asInt(),
                        "heartbeat.interval.ms", "200", "partition.assignment.strategy",
                        "org.apache.kafka.clients.consumer."
                            + (assignor.equals("eager") ? "RangeAssignor" : "CooperativeStickyAssignor")));
                }
                if (!call.get("instance").asText().isEmpty()) {
                    settings.put("group.instance.id", call.get("instance").asText());
                }
                member = consumer(settings);
                Events listener = new Events();
                member.subscribe(List.of(topic), listener);
                members.put(call.get("member").asText(), member);
                events.put(call.get("member").asText(), listener);
                return null;
            case "events":
                return events.get(call.get("member").asText()).seen;
            case "membership":
                return member.groupMetadata().generationId() + " " + member.groupMetadata().memberId();
            case "poll":
                List<Object> found = new ArrayList<>();
                member.poll(Duration.ofMillis(call.get("count").asInt()))
                    .forEach(record -> found.add(List.of(record.partition(), record.offset())));
                return found;
            case "assignment":
                return member.assignment().stream().map(TopicPartition::partition).toList();
            case "commit":
                member.commitSync();
                return null;
            case "load":
                load = new Load(topic);
                load.start();
                return null;
            case "loaded":
                return load.acknowledged.get();
            case "unload":
                return load.end();
            case "leave":
                members.remove(call.get("member").asText()).close();
                return null;
            default:
                throw new IllegalArgumentException(call.toString());
        }
    }

    static Object produced(TopicPartition place, JsonNode call) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap,
            "compression.type", call.get("codec").asText(),
            "enable.idempotence", call.get("idempotent").asBoolean(),
            "linger.ms", 20, "batch.size", 1 << 20, "max.request.size", 8 << 20, "max.block.ms", 1000 * SECONDS);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings,
                new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode record : call.get("records")) {
                List<Header> headers = new ArrayList<>();
                record.get("headers").forEach(header ->
                    headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1)))));
                sent.add(producer.send(new ProducerRecord<>(place.topic(), place.partition(),
                    record.get("timestamp").asLong(), bytes(record.get("key")), bytes(record.get("value")), headers)));
            }
            List<Long> offsets = new ArrayList<>();
            for (Future<RecordMetadata> one : sent) {
                offsets.add(waited(one).offset());
            }
            return offsets;
        }
    }

    static Object read(TopicPartition place, long offset, int count) {
        List<Map<String, Object>> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("auto.offset.reset", "none"))) {
            consumer.assign(List.of(place));
            consumer.seek(place, offset);
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
            while (found.size() < count && System.nanoTime() < until) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    List<List<String>> headers = new ArrayList<>();
                    for (Header header : record.headers()) {
                        List<String> pair = new ArrayList<>(List.of(header.key()));
                        pair.add(hex(header.value()));
                        headers.add(pair);
                    }
                    Map<String, Object> shown = new HashMap<>();
                    shown.put("offset", record.offset());
                    shown.put("key", hex(record.key()));
                    shown.put("value", hex(record.value()));
                    shown.put("headers", headers);
                    shown.put("timestamp", record.timestamp());
                    found.add(shown);
                }
            }
        }
        return found.subList(0, Math.min(count, found.size()));
    }

    static Object times(TopicPartition place, JsonNode timestamps) {
        List<Long> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
            for (JsonNode timestamp : timestamps) {
                OffsetAndTimestamp one = consumer.offsetsForTimes(Map.of(place, timestamp.asLong())).get(place);
                found.add(one == null ? -1L : one.offset());
            }
        }
        return found;
    }

    static KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("bootstrap.servers", bootstrap);
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static <T> T waited(Future<T> answer) throws Exception {
        return answer.get(SECONDS, TimeUnit.SECONDS);
    }

    static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : HexFormat.of().parseHex(text.asText());
    }

    static String hex(byte[] bytes) {
        return bytes == null ? null : HexFormat.of().formatHex(bytes);
    }
}
