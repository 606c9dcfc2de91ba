// Counts words with Kafka Streams: a repartition topic, a store and its changelog.
// Usage: WordCount BOOTSTRAP APPLICATION FOLDER INPUT OUTPUT, until SIGTERM.

import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

public final class WordCount {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        config.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        // Each word has an output of its own, and commits come soon.
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        config.put(StreamsConfig.topicPrefix("min.cleanable.dirty.ratio"), "0.01");

        config.put(StreamsConfig.consumerPrefix("session.timeout.ms"),
            System.getProperty("session", "45000"));
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG,
            System.getProperty("guarantee", StreamsConfig.AT_LEAST_ONCE));

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[3], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts")
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(args[4], Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        CountDownLatch ended = new CountDownLatch(1);
        boolean[] failed = {false};
        streams.setUncaughtExceptionHandler(failure -> {
            failure.printStackTrace();
            failed[0] = true;
            ended.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            // A member that stays would hold the partitions until its session ends.
            boolean closed = streams.close(CloseOptions.timeout(Duration.ofSeconds(20))
                .withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
            // Halt: a program that SIGTERM ends has the status 143 otherwise.
            Runtime.getRuntime().halt(closed && !failed[0] ? 0 : 1);
        }));
        streams.start();
        ended.await();
    }
}
