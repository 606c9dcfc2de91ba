// Readers, views of tables, and what is not served.

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;

final class Reading extends Tools {
    public static Object readers() throws Exception {
        String topic = topic();
        List<MessageId> ids = publish(topic, 0, 4);
        List<Object> found = new ArrayList<>();
        for (MessageId start : List.of(MessageId.earliest, ids.get(1), MessageId.latest)) {
            try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(start).create()) {
                found.add(read(reader));
            }
        }
        try (Reader<byte[]> last = client.newReader().topic(topic).startMessageId(MessageId.latest)
                .startMessageIdInclusive().create()) {
            found.add(read(last));
            last.seek(ids.get(0));
            found.add(read(last));
        }
        try (Reader<byte[]> since = client.newReader().topic(topic)
                .startMessageFromRollbackDuration(1, TimeUnit.HOURS).create()) {
            found.add(read(since));
        }
        return found;
    }

    public static Object readersOfPartitions() throws Exception {
        String topic = topic();
        order("partitioned", topic, "3");
        publish(topic, 0, 9);
        try (Reader<byte[]> reader = client.newReader().topic(topic)
                .startMessageId(MessageId.earliest).create()) {
            List<String> got = read(reader);
            Collections.sort(got);
            return got;
        }
    }

    public static Object tableView() throws Exception {
        String topic = topic();
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
            for (int number = 0; number < 6; number++) {
                producer.newMessage().key("k" + number % 3).value("v" + number).send();
            }
            try (TableView<String> view = client.newTableView(Schema.STRING).topic(topic).create()) {
                Map<String, Object> found = new TreeMap<>();
                view.forEach(found::put);
                producer.newMessage().key("k0").value(null).send();
                producer.newMessage().key("k1").value("new").send();
                view.refresh();
                return List.of(found, view.size(), view.containsKey("k0"), view.get("k1"));
            }
        }
    }

    public static Object compacted() throws Exception {
        String topic = topic();
        publishKeys(topic, false, 0, 6, 3);
        publishKeys(topic, true, 6, 6, 4);
        order("compact", topic, "");
        publishKeys(topic, false, 12, 2, 2);
        List<Object> found = new ArrayList<>();
        try (Reader<byte[]> reader = client.newReader().topic(topic).readCompacted(true)
                .startMessageId(MessageId.earliest).create()) {
            found.add(read(reader));
        }
        for (SubscriptionType type : List.of(SubscriptionType.Exclusive, SubscriptionType.Failover)) {
            try (Consumer<byte[]> consumer = consumer(topic).subscriptionName("s" + type)
                    .subscriptionType(type).readCompacted(true).subscribe()) {
                found.add(values(consumer, 6));
            }
        }
        for (SubscriptionType type : List.of(SubscriptionType.Shared, SubscriptionType.Key_Shared)) {
            found.add(raised(() -> consumer(topic).subscriptionName("s" + type).subscriptionType(type)
                .readCompacted(true).subscribe()));
        }
        try (TableView<byte[]> view = client.newTableView(Schema.BYTES).topic(topic).create()) {
            Map<String, Object> values = new TreeMap<>();
            view.forEach((key, value) -> values.put(key, new String(value)));
            found.add(values);
        }
        return found;
    }

    static void publishKeys(String topic, boolean together, int first, int count, int keys)
            throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(together)
                .batchingMaxPublishDelay(30, TimeUnit.SECONDS).create()) {
            for (int number = first; number < first + count; number++) {
                producer.newMessage().key("k" + number % keys).value(("m" + number).getBytes())
                    .sendAsync();
            }
            producer.flush();
        }
    }
}
