// What users publish, and what arrives of it.

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;

final class Publishing extends Tools {
    public static Object messageWithEverything() throws Exception {
        String topic = topic();
        try (Consumer<byte[]> consumer = consumer(topic).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).producerName("p").create()) {
            producer.newMessage().key("k").orderingKey("o".getBytes()).property("a", "b")
                .eventTime(7).sequenceId(9).value("v".getBytes()).send();
            Message<byte[]> got = receive(consumer);
            return List.of(text(got), got.getKey(), new String(got.getOrderingKey()), got.getProperties(),
                got.getEventTime(), got.getSequenceId(), got.getProducerName(), got.getRedeliveryCount(),
                got.getTopicName().equals(topic), got.hasKey(), got.size());
        }
    }

    public static Object keyOfBytes() throws Exception {
        String topic = topic();
        try (Consumer<byte[]> consumer = consumer(topic).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            producer.newMessage().keyBytes(new byte[] {0, -1, 7}).value(new byte[0]).send();
            Message<byte[]> got = receive(consumer);
            return List.of(Arrays.toString(got.getKeyBytes()), got.hasBase64EncodedKey(), got.size());
        }
    }

    public static Object nothingAsValue() throws Exception {
        String topic = topic();
        try (Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(topic)
                    .subscriptionName("s").subscribe();
                Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
            producer.newMessage().key("k").value(null).send();
            producer.newMessage().key("k").value("").send();
            return List.of(consumer.receive(SOON, TimeUnit.MILLISECONDS).getValue() == null,
                consumer.receive(SOON, TimeUnit.MILLISECONDS).getValue().isEmpty());
        }
    }

    public static Object batchesOfEveryCompression() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (CompressionType kind : CompressionType.values()) {
            String topic = topic();
            try (Consumer<byte[]> consumer = consumer(topic).subscribe();
                    Producer<byte[]> producer = client.newProducer().topic(topic).compressionType(kind)
                        .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
                sendTogether(producer, 20);
                found.put(kind.name(), values(consumer, 20).equals(numbered(0, 20)));
            }
        }
        return found;
    }

    public static Object chunks() throws Exception {
        String topic = topic();
        byte[] large = new byte[12_000_000];
        Arrays.fill(large, (byte) 7);
        try (Consumer<byte[]> consumer = consumer(topic).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                    .enableChunking(true).create()) {
            producer.send(large);
            producer.send("after".getBytes());
            Message<byte[]> got = receive(consumer);
            String after = text(receive(consumer));
            consumer.seek(got.getMessageId());
            return List.of(Arrays.equals(got.getData(), large), after, values(consumer, 1));
        }
    }

    public static Object delayedMessages() throws Exception {
        String topic = topic();
        try (Consumer<byte[]> consumer = consumer(topic).subscriptionType(SubscriptionType.Shared).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            producer.newMessage().value("later".getBytes()).deliverAfter(6, TimeUnit.SECONDS).send();
            producer.send("now".getBytes());
            List<String> first = values(consumer, 1);
            boolean quiet = consumer.receive(NOTHING, TimeUnit.MILLISECONDS) == null;
            return List.of(first, quiet, values(consumer, 1));
        }
    }

    public static Object producersThatExclude() throws Exception {
        // A client of its own: Apache Pulsar closes the connection of a producer that is fenced.
        try (PulsarClient own = PulsarClient.builder().serviceUrl(url).build()) {
            return exclude(own.newProducer().topic(topic()).sendTimeout(4, TimeUnit.SECONDS));
        }
    }

    static Object exclude(ProducerBuilder<byte[]> builder) throws Exception {
        Producer<byte[]> first = builder.clone().accessMode(ProducerAccessMode.Exclusive).create();
        List<Object> found = new ArrayList<>();
        found.add(raised(() -> builder.clone().accessMode(ProducerAccessMode.Exclusive).create()));
        found.add(raised(() -> builder.clone().create()));
        CompletableFuture<Producer<byte[]>> waiting =
            builder.clone().accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        Thread.sleep(500);
        found.add(waiting.isDone());
        first.close();
        waiting.get(SOON, TimeUnit.MILLISECONDS).send("waited".getBytes());
        Producer<byte[]> fencing = builder.clone()
            .accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
        fencing.send("fenced".getBytes());
        found.add(raised(() -> waiting.get().send("late".getBytes())));
        fencing.close();
        try (Consumer<byte[]> consumer = consumer(first.getTopic()).subscribe()) {
            found.add(drain(consumer));
        }
        return found;
    }

    public static Object nameInUse() throws Exception {
        String topic = topic();
        try (Producer<byte[]> first = client.newProducer().topic(topic).producerName("me").create()) {
            first.newMessage().sequenceId(5).value(new byte[0]).send();
            String second = raised(() -> client.newProducer().topic(topic).producerName("me").create());
            return List.of(second, first.getLastSequenceId());
        }
    }
}
