// Writes transactions and prints what a committed reader, the group and a fenced producer see.
// Usage: Transactions BOOTSTRAP TOPIC GROUP

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Transactions {
    public static void main(String[] args) throws Exception {
        TopicPartition place = new TopicPartition(args[1], 0);
        try (KafkaProducer<String, String> first = producer(args)) {
            first.initTransactions();
            send(first, place, "a", 3);
            first.commitTransaction();
            send(first, place, "b", 3);
            first.abortTransaction();
            send(first, place, "c", 1);
            first.sendOffsetsToTransaction(
                Map.of(place, new OffsetAndMetadata(3)), new ConsumerGroupMetadata(args[2]));
            first.commitTransaction();
            first.beginTransaction();
            first.sendOffsetsToTransaction(
                Map.of(place, new OffsetAndMetadata(1)), new ConsumerGroupMetadata(args[2]));
            first.abortTransaction();
            send(first, place, "d", 1);
            try (KafkaProducer<String, String> second = producer(args)) {
                second.initTransactions();
                send(second, place, "e", 1);
                System.out.println("fenced " + fenced(first, place));
                second.commitTransaction();
            }
        }
        System.out.println("seen " + seen(args, place));
    }

    private static KafkaProducer<String, String> producer(String[] args) {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("transactional.id", args[1]);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    private static void send(
            KafkaProducer<String, String> producer, TopicPartition place, String value, int count) {
        producer.beginTransaction();
        for (int number = 0; number < count; number++) {
            producer.send(new ProducerRecord<>(place.topic(), 0, "k", value + number));
        }
        producer.flush();
    }

    private static boolean fenced(KafkaProducer<String, String> producer, TopicPartition place) {
        try {
            producer.send(new ProducerRecord<>(place.topic(), 0, "k", "late"));
            producer.commitTransaction();
        } catch (ProducerFencedException | InvalidProducerEpochException failure) {
            return true;
        }
        return false;
    }

    private static List<String> seen(String[] args, TopicPartition place) {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("group.id", args[2]);
        config.put("isolation.level", "read_committed");
        config.put("enable.auto.commit", false);
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            System.out.println(
                "committed " + consumer.committed(Set.of(place)).get(place).offset());
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            while (consumer.position(place) < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    values.add(record.value());
                }
            }
        }
        return values;
    }
}
