// Several consumers of a subscription, several topics of a consumer, and moving a subscription.

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageListener;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

final class Sharing extends Tools {
    public static Object keysInOrder() throws Exception {
        String topic = topic();
        Map<String, List<Integer>> seen = new ConcurrentHashMap<>();
        Map<String, Set<String>> owners = new ConcurrentHashMap<>();
        CountDownLatch all = new CountDownLatch(60);
        MessageListener<byte[]> listener = (consumer, message) -> {
            seen.computeIfAbsent(message.getKey(), key -> Collections.synchronizedList(new ArrayList<>()))
                .add(Integer.parseInt(text(message)));
            owners.computeIfAbsent(message.getKey(), key -> ConcurrentHashMap.newKeySet())
                .add(consumer.getConsumerName());
            consumer.acknowledgeAsync(message);
            all.countDown();
        };
        ConsumerBuilder<byte[]> builder = consumer(topic).subscriptionType(SubscriptionType.Key_Shared)
            .messageListener(listener);
        try (Consumer<byte[]> one = builder.clone().consumerName("one").subscribe();
                Consumer<byte[]> two = builder.clone().consumerName("two").subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic)
                    .batcherBuilder(BatcherBuilder.KEY_BASED).create()) {
            for (int number = 0; number < 60; number++) {
                producer.newMessage().key("k" + number % 6).value(("" + number).getBytes()).sendAsync();
            }
            producer.flush();
            boolean came = all.await(SOON, TimeUnit.MILLISECONDS);
            boolean ordered = seen.values().stream()
                .allMatch(numbers -> numbers.equals(numbers.stream().sorted().toList()));
            boolean alone = owners.values().stream().allMatch(names -> names.size() == 1);
            return List.of(came, seen.size(), ordered, alone);
        }
    }

    public static Object stickyRanges() throws Exception {
        String topic = topic();
        ConsumerBuilder<byte[]> builder = consumer(topic).subscriptionType(SubscriptionType.Key_Shared);
        try (Consumer<byte[]> low = builder.clone().keySharedPolicy(KeySharedPolicy.stickyHashRange()
                    .ranges(Range.of(0, 20_000))).subscribe();
                Consumer<byte[]> high = builder.clone().keySharedPolicy(KeySharedPolicy.stickyHashRange()
                    .ranges(Range.of(20_001, 65_535))).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (int number = 0; number < 20; number++) {
                producer.newMessage().key("key-" + number).value(("" + number).getBytes()).send();
            }
            String overlap = raised(() -> builder.clone().keySharedPolicy(KeySharedPolicy.stickyHashRange()
                .ranges(Range.of(5, 6))).subscribe());
            // By the hashes of the keys.
            return List.of(drain(low, 5), drain(high, 15), overlap);
        }
    }

    public static Object whoIsActive() throws Exception {
        String topic = topic();
        Map<String, Object> told = new ConcurrentHashMap<>();
        ConsumerEventListener listener = new ConsumerEventListener() {
            @Override
            public void becameActive(Consumer<?> consumer, int partition) {
                told.put(consumer.getConsumerName(), "active");
            }

            @Override
            public void becameInactive(Consumer<?> consumer, int partition) {
                told.put(consumer.getConsumerName(), "inactive");
            }
        };
        ConsumerBuilder<byte[]> builder = consumer(topic).subscriptionType(SubscriptionType.Failover)
            .consumerEventListener(listener);
        // The lower the number, the sooner: so it does not matter what the topic is called.
        Consumer<byte[]> first = builder.clone().consumerName("first").priorityLevel(0).subscribe();
        Consumer<byte[]> second = builder.clone().consumerName("second").priorityLevel(1).subscribe();
        List<Object> found = new ArrayList<>();
        found.add(until(() -> told.size() == 2) ? new TreeMap<>(told) : "nobody is told");
        first.close();
        found.add(until(() -> "active".equals(told.get("second"))));
        publish(topic, 0, 2);
        found.add(values(second, 2));
        second.close();
        return found;
    }

    public static Object seeking() throws Exception {
        String topic = topic();
        List<MessageId> ids = publish(topic, 0, 5);
        List<Object> found = new ArrayList<>();
        try (Consumer<byte[]> consumer = consumer(topic).startMessageIdInclusive().subscribe()) {
            messages(consumer, 5);
            consumer.seek(ids.get(2));
            found.add(shown(consumer, 3));
            consumer.seek(MessageId.earliest);
            found.add(shown(consumer, 5));
            consumer.seek(0L);
            found.add(shown(consumer, 5));
            consumer.seek(partition -> ids.get(4));
            found.add(shown(consumer, 1));
            consumer.seek(MessageId.latest);
            found.add(shown(consumer, 0));
            found.add(consumer.getLastMessageIds().size());
        }
        return found;
    }

    public static Object severalTopics() throws Exception {
        String one = topic();
        String two = topic();
        try (Consumer<byte[]> consumer = client.newConsumer().topics(List.of(one, two))
                .subscriptionName("s").subscribe()) {
            publish(one, 0, 2);
            publish(two, 2, 2);
            List<String> got = values(consumer, 4);
            Collections.sort(got);
            return got;
        }
    }

    public static Object topicsThatComeLater() throws Exception {
        // Apache Pulsar looks for patterns of up to 50 characters itself, and watches those only.
        String prefix = topic().substring(0, namespace.length() + 23);
        Pattern pattern = Pattern.compile(prefix + "-.*");
        publish(prefix + "-old", 0, 1);
        // So long that only the broker can have told of the new topic.
        try (Consumer<byte[]> consumer = client.newConsumer().topicsPattern(pattern).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .patternAutoDiscoveryPeriod(600).subscribe()) {
            List<String> old = values(consumer, 1);
            publish(prefix + "-new", 1, 1);
            publish(topic(), 2, 1);
            return List.of(old, values(consumer, 1), drain(consumer));
        }
    }

    public static Object partitionsThatComeLater() throws Exception {
        String topic = topic();
        order("partitioned", topic, "2");
        try (Consumer<byte[]> consumer = consumer(topic)
                    .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                    .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create()) {
            int before = client.getPartitionsForTopic(topic).get().size();
            order("grow", topic, "3");
            Set<String> used = new TreeSet<>();
            boolean all = until(() -> {
                producer.send("x".getBytes());
                Message<byte[]> got = consumer.receive(NOTHING, TimeUnit.MILLISECONDS);
                if (got != null) {
                    used.add(got.getTopicName().substring(got.getTopicName().lastIndexOf('-') + 1));
                }
                return used.size() == 3;
            });
            return List.of(before, client.getPartitionsForTopic(topic).get().size(), all);
        }
    }

    public static Object topicThatEnds() throws Exception {
        String topic = topic();
        publish(topic, 0, 2);
        try (Consumer<byte[]> consumer = consumer(topic).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            order("terminate", topic, "");
            String refused = raised(() -> producer.send("more".getBytes()));
            boolean early = consumer.hasReachedEndOfTopic();
            List<String> got = values(consumer, 2);
            boolean told = until(consumer::hasReachedEndOfTopic);
            return List.of(refused, early, got, told,
                raised(() -> client.newProducer().topic(topic).create()));
        }
    }

    public static Object notKept() throws Exception {
        String topic = topic().replace("persistent://", "non-persistent://");
        try (Consumer<byte[]> consumer = consumer(topic).subscribe()) {
            publish(topic, 0, 3);
            return values(consumer, 3);
        }
    }

    public static Object batchReceive() throws Exception {
        String topic = topic();
        publish(topic, 0, 4);
        try (Consumer<byte[]> consumer = consumer(topic).startPaused(true).subscribe()) {
            boolean quiet = consumer.receive(NOTHING, TimeUnit.MILLISECONDS) == null;
            consumer.resume();
            List<String> got = new ArrayList<>();
            until(() -> {
                consumer.batchReceive().forEach(message -> got.add(text(message)));
                return got.size() == 4;
            });
            return List.of(quiet, got);
        }
    }
}
