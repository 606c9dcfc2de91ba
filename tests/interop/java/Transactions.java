// Transactions: what is seen when, what acknowledgements exclude each other, how transactions end.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

final class Transactions extends Tools {
    // Of a failover subscription the next consumer waits, which takes time here and there.
    static final List<SubscriptionType> KINDS =
        List.of(SubscriptionType.Exclusive, SubscriptionType.Shared, SubscriptionType.Key_Shared);

    private static PulsarClient own;

    static synchronized PulsarClient own() throws PulsarClientException {
        if (own == null) {
            own = PulsarClient.builder().serviceUrl(url).enableTransaction(true)
                .operationTimeout(10, TimeUnit.SECONDS).build();
        }
        return own;
    }

    static Transaction begin(int seconds) throws Exception {
        return own().newTransaction().withTransactionTimeout(seconds, TimeUnit.SECONDS).build()
            .get(SOON, TimeUnit.MILLISECONDS);
    }

    static Producer<byte[]> producer(String topic) throws Exception {
        return own().newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS)
            .enableBatching(false).create();
    }

    static ConsumerBuilder<byte[]> builder(String topic, SubscriptionType type) throws Exception {
        return own().newConsumer().topic(topic).subscriptionName("s").subscriptionType(type)
            .enableBatchIndexAcknowledgment(true)
            .acknowledgmentGroupTime(10, TimeUnit.MILLISECONDS)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    static void write(Producer<byte[]> producer, Transaction in, String value) throws Exception {
        producer.newMessage(in).value(value.getBytes()).sendAsync().get(SOON, TimeUnit.MILLISECONDS);
    }

    static String acknowledged(Consumer<byte[]> consumer, Message<byte[]> message, Transaction in) {
        return raised(() -> consumer.acknowledgeAsync(message.getMessageId(), in)
            .get(SOON, TimeUnit.MILLISECONDS));
    }

    static String upTo(Consumer<byte[]> consumer, Message<byte[]> message, Transaction in) {
        return raised(() -> consumer.acknowledgeCumulativeAsync(message.getMessageId(), in)
            .get(SOON, TimeUnit.MILLISECONDS));
    }

    static void commit(Transaction transaction) throws Exception {
        transaction.commit().get(SOON, TimeUnit.MILLISECONDS);
    }

    static void abort(Transaction transaction) throws Exception {
        transaction.abort().get(SOON, TimeUnit.MILLISECONDS);
    }

    static String ended(Transaction transaction, boolean commit) {
        return raised(() -> (commit ? transaction.commit() : transaction.abort())
            .get(SOON, TimeUnit.MILLISECONDS));
    }

    /** What comes, so many messages at least, without acknowledgements. */
    static List<Message<byte[]>> got(Consumer<byte[]> consumer, int least) throws Exception {
        List<Message<byte[]>> found = messages(consumer, least);
        Message<byte[]> more;
        while ((more = consumer.receive(NOTHING, TimeUnit.MILLISECONDS)) != null) {
            found.add(more);
        }
        return found;
    }

    static List<String> texts(Consumer<byte[]> consumer, int least) throws Exception {
        return got(consumer, least).stream().map(Tools::text).toList();
    }

    /** With how often each came before. */
    static List<String> counted(Consumer<byte[]> consumer, int least) throws Exception {
        return got(consumer, least).stream()
            .map(message -> text(message) + " " + message.getRedeliveryCount()).toList();
    }

    public static Object transactionsInTheOrderOfTheLog() throws Exception {
        String topic = topic();
        List<Object> found = new ArrayList<>();
        try (Consumer<byte[]> consumer = builder(topic, SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = producer(topic)) {
            Transaction first = begin(60);
            Transaction second = begin(60);
            producer.send("before".getBytes());
            write(producer, first, "a0");
            write(producer, second, "b0");
            producer.send("behind".getBytes());
            write(producer, first, "a1");
            found.add(texts(consumer, 1));
            abort(first);
            found.add(texts(consumer, 0));
            commit(second);
            found.add(texts(consumer, 2));
        }
        return found;
    }

    public static Object transactionConsumesAndProduces() throws Exception {
        String source = topic();
        String target = topic();
        Map<String, Object> found = new TreeMap<>();
        publish(source, 0, 3);
        try (Consumer<byte[]> output = builder(target, SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = producer(target)) {
            for (boolean commit : List.of(false, true)) {
                try (Consumer<byte[]> input = builder(source, SubscriptionType.Shared).subscribe()) {
                    Transaction transaction = begin(60);
                    for (Message<byte[]> message : messages(input, 3)) {
                        write(producer, transaction, "of " + text(message));
                        input.acknowledgeAsync(message.getMessageId(), transaction)
                            .get(SOON, TimeUnit.MILLISECONDS);
                    }
                    found.put("before " + commit, texts(output, 0));
                    found.put("ended " + commit, ended(transaction, commit));
                    found.put("after " + commit, texts(output, commit ? 3 : 0));
                }
            }
            try (Consumer<byte[]> input = builder(source, SubscriptionType.Shared).subscribe()) {
                found.put("left", texts(input, 0));
            }
        }
        return found;
    }

    public static Object abortedAcknowledgements() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (SubscriptionType type : KINDS) {
            String topic = topic();
            publish(topic, 0, 3);
            try (Consumer<byte[]> consumer = builder(topic, type).subscribe()) {
                List<Message<byte[]>> got = messages(consumer, 3);
                Transaction transaction = begin(60);
                acknowledged(consumer, got.get(1), transaction);
                abort(transaction);
                found.put(type + " 1", counted(consumer, type == SubscriptionType.Exclusive ? 3 : 1));
                transaction = begin(60);
                acknowledged(consumer, got.get(1), transaction);
                abort(transaction);
                found.put(type + " 2", counted(consumer, type == SubscriptionType.Exclusive ? 3 : 1));
            }
        }
        return found;
    }

    public static Object heldByAnOpenTransaction() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (SubscriptionType type : KINDS) {
            String topic = topic();
            publish(topic, 0, 3);
            Transaction transaction = begin(60);
            try (Consumer<byte[]> consumer = builder(topic, type).subscribe()) {
                List<Message<byte[]>> got = messages(consumer, 3);
                acknowledged(consumer, got.get(0), transaction);
                consumer.redeliverUnacknowledgedMessages();
                found.put(type + " again", new TreeSet<>(texts(consumer, 2)));
            }
            try (Consumer<byte[]> consumer = builder(topic, type).subscribe()) {
                found.put(type + " another", new TreeSet<>(texts(consumer, 2)));
                commit(transaction);
            }
            try (Consumer<byte[]> consumer = builder(topic, type).subscribe()) {
                found.put(type + " committed", new TreeSet<>(texts(consumer, 2)));
            }
        }
        return found;
    }

    public static Object conflicts() throws Exception {
        String topic = topic();
        publish(topic, 0, 4);
        Map<String, Object> found = new TreeMap<>();
        try (Consumer<byte[]> consumer = builder(topic, SubscriptionType.Shared)
                .isAckReceiptEnabled(true).subscribe()) {
            List<Message<byte[]>> got = messages(consumer, 4);
            Transaction first = begin(60);
            Transaction second = begin(60);
            found.put("1 first", acknowledged(consumer, got.get(0), first));
            found.put("2 by another", acknowledged(consumer, got.get(0), second));
            found.put("3 again", acknowledged(consumer, got.get(0), first));
            found.put("4 without", raised(() -> consumer.acknowledge(got.get(1))));
            found.put("5 acknowledged before", acknowledged(consumer, got.get(1), second));
            found.put("6 of a held one", raised(() -> consumer.acknowledge(got.get(0))));
            found.put("7 then", acknowledged(consumer, got.get(2), second));
            found.put("8 ends", List.of(ended(first, false), ended(second, false)));
        }
        try (Consumer<byte[]> consumer = builder(topic, SubscriptionType.Shared).subscribe()) {
            found.put("9 left", texts(consumer, 2));
        }
        return found;
    }

    public static Object conflictsInABatch() throws Exception {
        String topic = topic();
        Map<String, Object> found = new TreeMap<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            sendTogether(producer, 4);
        }
        try (Consumer<byte[]> consumer = builder(topic, SubscriptionType.Shared).subscribe()) {
            List<Message<byte[]>> got = messages(consumer, 4);
            Transaction first = begin(60);
            Transaction second = begin(60);
            found.put("1 first", acknowledged(consumer, got.get(0), first));
            found.put("2 by another", acknowledged(consumer, got.get(0), second));
            found.put("3 of another", acknowledged(consumer, got.get(1), second));
            commit(first);
            abort(second);
        }
        try (Consumer<byte[]> consumer = builder(topic, SubscriptionType.Shared).subscribe()) {
            found.put("4 left", texts(consumer, 3));
        }
        return found;
    }

    public static Object conflictsCumulative() throws Exception {
        String topic = topic();
        publish(topic, 0, 4);
        Map<String, Object> found = new TreeMap<>();
        try (Consumer<byte[]> consumer = builder(topic, SubscriptionType.Exclusive).subscribe()) {
            List<Message<byte[]>> got = messages(consumer, 4);
            Transaction first = begin(60);
            Transaction second = begin(60);
            found.put("1 first", upTo(consumer, got.get(1), first));
            found.put("2 by another", upTo(consumer, got.get(2), second));
            found.put("3 further", upTo(consumer, got.get(2), first));
            found.put("4 ends", List.of(ended(first, true), ended(second, true)));
            Transaction third = begin(60);
            Transaction fourth = begin(60);
            found.put("5 acknowledged before", upTo(consumer, got.get(2), third));
            found.put("6 back", List.of(upTo(consumer, got.get(3), fourth),
                upTo(consumer, got.get(3), fourth), ended(fourth, false)));
        }
        try (Consumer<byte[]> consumer = builder(topic, SubscriptionType.Exclusive).subscribe()) {
            found.put("7 left", texts(consumer, 1));
        }
        return found;
    }

    public static Object ends() throws Exception {
        String topic = topic();
        Map<String, Object> found = new TreeMap<>();
        try (Consumer<byte[]> consumer = builder(topic, SubscriptionType.Shared).subscribe();
                Producer<byte[]> producer = producer(topic)) {
            Transaction committed = begin(60);
            write(producer, committed, "a");
            found.put("1 committed", List.of(ended(committed, true), ended(committed, true)));
            found.put("2 then aborted", ended(committed, false));
            found.put("3 written to", raised(() -> write(producer, committed, "b")));
            Transaction late = begin(1);
            write(producer, late, "c");
            producer.send("d".getBytes());
            found.put("4 timed out", values(consumer, 2));
            found.put("5 then committed", ended(late, true));
            Transaction empty = begin(60);
            found.put("6 empty", ended(empty, false));
        }
        return found;
    }
}
