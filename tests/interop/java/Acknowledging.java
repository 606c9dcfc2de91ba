// Subscriptions: who is refused, what is acknowledged, and what comes again.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.SubscriptionType;

final class Acknowledging extends Tools {
    public static Object refusals() throws Exception {
        String topic = topic();
        Map<String, Object> found = new TreeMap<>();
        try (Consumer<byte[]> first = consumer(topic).subscribe()) {
            found.put("exclusive", raised(() -> consumer(topic).subscribe()));
            found.put("shared", raised(() ->
                consumer(topic).subscriptionType(SubscriptionType.Shared).subscribe()));
        }
        String missing = "persistent://public/no-such-namespace/t";
        found.put("namespace", raised(() -> client.newProducer().topic(missing).create()));
        found.put("tenant", raised(() ->
            consumer("persistent://no-such-tenant/ns/t").subscribe()));
        return found;
    }

    public static Object acknowledgementsWithReceipts() throws Exception {
        String topic = topic();
        ConsumerBuilder<byte[]> builder = consumer(topic).isAckReceiptEnabled(true);
        Consumer<byte[]> consumer = builder.subscribe();
        publish(topic, 0, 5);
        List<Message<byte[]>> got = messages(consumer, 5);
        consumer.acknowledgeAsync(got.get(3)).get(SOON, TimeUnit.MILLISECONDS);
        consumer.acknowledgeCumulativeAsync(got.get(1)).get(SOON, TimeUnit.MILLISECONDS);
        consumer.acknowledgeAsync(List.of(got.get(3).getMessageId(), got.get(4).getMessageId()))
            .get(SOON, TimeUnit.MILLISECONDS);
        consumer.close();
        try (Consumer<byte[]> again = builder.subscribe()) {
            return drain(again, 1);
        }
    }

    public static Object partOfABatch() throws Exception {
        String topic = topic();
        ConsumerBuilder<byte[]> builder = consumer(topic).subscriptionType(SubscriptionType.Shared)
            .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true);
        Consumer<byte[]> consumer = builder.subscribe();
        try (Producer<byte[]> producer = client.newProducer().topic(topic)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            sendTogether(producer, 5);
        }
        List<Message<byte[]>> got = messages(consumer, 5);
        consumer.acknowledge(got.get(1));
        consumer.acknowledge(got.get(4));
        consumer.close();
        try (Consumer<byte[]> again = builder.subscribe()) {
            return drain(again, 3);
        }
    }

    public static Object allAgain() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (SubscriptionType type : SubscriptionType.values()) {
            String topic = topic();
            try (Consumer<byte[]> consumer = consumer(topic).subscriptionType(type).subscribe()) {
                publish(topic, 0, 3);
                messages(consumer, 2);
                consumer.redeliverUnacknowledgedMessages();
                publish(topic, 3, 1);
                List<String> again = drain(consumer, 4);
                // Of several, the client may get again what it has already.
                boolean several = type == SubscriptionType.Shared || type == SubscriptionType.Key_Shared;
                found.put(type.name(), several ? new TreeSet<>(again) : again);
            }
        }
        return found;
    }

    public static Object refusedAndTimedOut() throws Exception {
        String topic = topic();
        try (Consumer<byte[]> consumer = consumer(topic).subscriptionType(SubscriptionType.Shared)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .ackTimeout(1, TimeUnit.SECONDS).subscribe()) {
            publish(topic, 0, 1);
            Message<byte[]> got = receive(consumer);
            consumer.negativeAcknowledge(got);
            Message<byte[]> again = receive(consumer);
            Message<byte[]> late = receive(consumer);
            consumer.acknowledge(late);
            return List.of(again.getRedeliveryCount(), late.getRedeliveryCount());
        }
    }

    public static Object retriesAndDeadLetters() throws Exception {
        String topic = topic();
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(2)
            .initialSubscriptionName("kept").build();
        try (Consumer<byte[]> consumer = consumer(topic).subscriptionType(SubscriptionType.Shared)
                .enableRetry(true).deadLetterPolicy(policy).subscribe()) {
            publish(topic, 0, 1);
            List<Object> found = new ArrayList<>();
            for (int attempt = 0; attempt < 3; attempt++) {
                Message<byte[]> got = receive(consumer);
                found.add(got.getProperty("RECONSUMETIMES"));
                consumer.reconsumeLater(got, 1, TimeUnit.SECONDS);
            }
            try (Consumer<byte[]> dead = client.newConsumer().topic(topic + "-s-DLQ")
                    .subscriptionName("kept").subscribe()) {
                Message<byte[]> got = receive(dead);
                found.add(text(got));
                found.add(new TreeSet<>(got.getProperties().keySet()));
            }
            return found;
        }
    }
}
