// What administrators do with the official Java client, each scenario one method that returns what
// they saw. Usage: AdminScenarios ADMIN_URL TENANT, a tenant that does not exist. Messages go by way
// of an http:// service URL, whose lookups are part of the administration. Each line of the output
// is one scenario's outcome as JSON.

import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.common.policies.data.AutoTopicCreationOverride;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;
import org.apache.pulsar.common.policies.data.SubscriptionStats;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.policies.data.TopicStats;
import org.apache.pulsar.common.protocol.schema.PostSchemaPayload;

public final class AdminScenarios {
    interface Action {
        Object run() throws Exception;
    }

    interface Scenario {
        Object run(String namespace) throws Exception;
    }

    static PulsarAdmin admin;
    static PulsarClient client;
    static String tenant;

    public static void main(String[] given) throws Exception {
        tenant = given[1];
        admin = PulsarAdmin.builder().serviceHttpUrl(given[0]).build();
        client = PulsarClient.builder().serviceUrl(given[0]).build();
        Map<String, Scenario> all = new TreeMap<>();
        all.put("brokers", AdminScenarios::brokers);
        all.put("tenants", AdminScenarios::tenants);
        all.put("namespaces", AdminScenarios::namespaces);
        all.put("policies", AdminScenarios::policies);
        all.put("topics", AdminScenarios::topics);
        all.put("partitions", AdminScenarios::partitions);
        all.put("subscriptions", AdminScenarios::subscriptions);
        all.put("cursors", AdminScenarios::cursors);
        all.put("messages", AdminScenarios::messages);
        all.put("stats", AdminScenarios::stats);
        all.put("schemas", AdminScenarios::schemas);
        all.put("terminate", AdminScenarios::terminate);
        all.put("clients", AdminScenarios::clients);
        admin.tenants().createTenant(tenant, roles("r"));
        ObjectMapper json = new ObjectMapper();
        for (Map.Entry<String, Scenario> one : all.entrySet()) {
            String namespace = tenant + "/" + one.getKey();
            admin.namespaces().createNamespace(namespace);
            Object seen;
            try {
                seen = one.getValue().run(namespace);
            } catch (Exception error) {
                seen = "ended by " + error;
            }
            System.out.println(json.writeValueAsString(List.of(one.getKey(), seen)));
            System.out.flush();
        }
        client.close();
        admin.close();
        System.exit(0);
    }

    /** Return what an action returns, or how it is refused. */
    static Object outcome(Action action) throws Exception {
        try {
            Object found = action.run();
            return found == null ? "nothing" : found;
        } catch (PulsarAdminException error) {
            return error.getClass().getSimpleName() + " " + error.getStatusCode();
        } catch (PulsarClientException error) {
            return error.getClass().getSimpleName();
        }
    }

    interface Change {
        void run() throws Exception;
    }

    static Object done(Change change) throws Exception {
        return outcome(() -> {
            change.run();
            return "ok";
        });
    }

    static TenantInfo roles(String... roles) {
        return TenantInfo.builder()
                .adminRoles(Set.of(roles)).allowedClusters(Set.of("standalone")).build();
    }

    static List<String> publish(String topic, int count) throws Exception {
        List<String> sent = new ArrayList<>();
        try (Producer<byte[]> producer =
                client.newProducer().topic(topic).enableBatching(false).create()) {
            for (int n = 0; n < count; n++) {
                producer.newMessage().key("k" + n).property("n", "" + n).eventTime(1700000000000L)
                        .value(("m" + n).getBytes(StandardCharsets.UTF_8)).send();
                sent.add("m" + n);
            }
        }
        return sent;
    }

    static List<Object> told(List<Message<byte[]>> messages) {
        List<Object> all = new ArrayList<>();
        for (Message<byte[]> message : messages) {
            all.add(told(message));
        }
        return all;
    }

    static Object told(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    static List<Object> peek(String topic, String subscription, int count) throws Exception {
        return told(admin.topics().peekMessages(topic, subscription, count));
    }

    static Object brokers(String namespace) throws Exception {
        admin.brokers().healthcheck();
        return List.of(admin.clusters().getClusters(), !admin.brokers().getVersion().isEmpty(),
                admin.brokers().getActiveBrokers("standalone").size(),
                outcome(() -> admin.clusters().getCluster("nowhere")));
    }

    static Object tenants(String namespace) throws Exception {
        String name = tenant + "-other";
        List<Object> seen = new ArrayList<>();
        seen.add(outcome(() -> admin.tenants().getTenantInfo(name)));
        seen.add(done(() -> admin.tenants().createTenant(name, roles("a"))));
        seen.add(done(() -> admin.tenants().createTenant(name, roles("a"))));
        seen.add(done(() -> admin.tenants().updateTenant(name, roles("b", "c"))));
        seen.add(new TreeSet<>(admin.tenants().getTenantInfo(name).getAdminRoles()));
        seen.add(admin.tenants().getTenantInfo(name).getAllowedClusters());
        seen.add(admin.tenants().getTenants().contains(name));
        seen.add(done(() -> admin.tenants().deleteTenant(tenant)));
        seen.add(done(() -> admin.tenants().deleteTenant(name)));
        seen.add(done(() -> admin.tenants().deleteTenant(name)));
        seen.add(done(() -> admin.tenants().updateTenant(name, roles("b"))));
        return seen;
    }

    static Object namespaces(String namespace) throws Exception {
        List<Object> seen = new ArrayList<>();
        String more = namespace + "-more";
        seen.add(done(() -> admin.namespaces().createNamespace(more, Set.of("standalone"))));
        seen.add(done(() -> admin.namespaces().createNamespace(more)));
        seen.add(done(() -> admin.namespaces().createNamespace("no-such-tenant/x")));
        seen.add(admin.namespaces().getNamespaces(tenant).contains(more));
        seen.add(outcome(() -> admin.namespaces().getNamespaces("no-such-tenant")));
        seen.add(outcome(() -> admin.namespaces().getPolicies(tenant + "/none")));
        seen.add(admin.namespaces().getPolicies(more).schema_compatibility_strategy.toString());
        admin.topics().createNonPartitionedTopic("persistent://" + more + "/t");
        seen.add(admin.namespaces().getTopics(more).size());
        seen.add(outcome(() -> admin.namespaces().getTopics(tenant + "/none")));
        seen.add(done(() -> admin.namespaces().deleteNamespace(more)));
        admin.topics().delete("persistent://" + more + "/t");
        seen.add(done(() -> admin.namespaces().deleteNamespace(more)));
        seen.add(done(() -> admin.namespaces().deleteNamespace(more)));
        return seen;
    }

    static Object policies(String namespace) throws Exception {
        List<Object> seen = new ArrayList<>();
        seen.add(outcome(() -> admin.namespaces().getRetention(namespace)));
        admin.namespaces().setRetention(namespace, new RetentionPolicies(10, 100));
        seen.add(admin.namespaces().getRetention(namespace).toString());
        admin.namespaces().setRetention(namespace, new RetentionPolicies(-1, -1));
        seen.add(admin.namespaces().getRetention(namespace).toString());
        seen.add(done(() -> admin.namespaces().setRetention(
                namespace, new RetentionPolicies(0, 100))));
        admin.namespaces().removeRetention(namespace);
        seen.add(outcome(() -> admin.namespaces().getRetention(namespace)));
        seen.add(outcome(() -> admin.namespaces().getDeduplicationStatus(namespace)));
        admin.namespaces().setDeduplicationStatus(namespace, true);
        seen.add(admin.namespaces().getDeduplicationStatus(namespace));
        admin.namespaces().removeDeduplicationStatus(namespace);
        seen.add(outcome(() -> admin.namespaces().getDeduplicationStatus(namespace)));
        seen.add(admin.namespaces().getSchemaCompatibilityStrategy(namespace).toString());
        admin.namespaces().setSchemaCompatibilityStrategy(
                namespace, SchemaCompatibilityStrategy.FORWARD);
        seen.add(admin.namespaces().getSchemaCompatibilityStrategy(namespace).toString());
        seen.add(admin.namespaces().getIsAllowAutoUpdateSchema(namespace));
        admin.namespaces().setIsAllowAutoUpdateSchema(namespace, false);
        seen.add(admin.namespaces().getIsAllowAutoUpdateSchema(namespace));
        seen.add(admin.namespaces().getSchemaValidationEnforced(namespace));
        admin.namespaces().setSchemaValidationEnforced(namespace, true);
        seen.add(admin.namespaces().getSchemaValidationEnforced(namespace));
        seen.add(admin.namespaces().getBacklogQuotaMap(namespace).toString());
        admin.namespaces().setBacklogQuota(namespace, BacklogQuota.builder().limitSize(2_000_000)
                .retentionPolicy(BacklogQuota.RetentionPolicy.consumer_backlog_eviction).build());
        seen.add(admin.namespaces().getBacklogQuotaMap(namespace).toString());
        admin.namespaces().removeBacklogQuota(namespace);
        seen.add(admin.namespaces().getBacklogQuotaMap(namespace).toString());
        seen.add(outcome(() -> admin.namespaces().getAutoTopicCreation(namespace)));
        admin.namespaces().setAutoTopicCreation(namespace, AutoTopicCreationOverride.builder()
                .allowAutoTopicCreation(true).topicType("partitioned").defaultNumPartitions(2)
                .build());
        seen.add(admin.namespaces().getAutoTopicCreation(namespace).getDefaultNumPartitions());
        admin.namespaces().removeAutoTopicCreation(namespace);
        seen.add(outcome(() -> admin.namespaces().getAutoTopicCreation(namespace)));
        return seen;
    }

    static Object topics(String namespace) throws Exception {
        List<Object> seen = new ArrayList<>();
        String topic = "persistent://" + namespace + "/t", none = "persistent://" + namespace + "/none";
        seen.add(done(() -> admin.topics().createNonPartitionedTopic(topic, Map.of("a", "b"))));
        seen.add(done(() -> admin.topics().createNonPartitionedTopic(topic)));
        seen.add(admin.topics().getProperties(topic));
        seen.add(outcome(() -> admin.topics().getProperties(none)));
        seen.add(admin.topics().getPartitionedTopicMetadata(topic).partitions);
        seen.add(outcome(() -> admin.topics().getPartitionedTopicMetadata(none)));
        seen.add(outcome(() -> admin.topics().getStats(none)));
        seen.add(done(() -> admin.topics().createNonPartitionedTopic(
                "persistent://" + tenant + "/none/t")));
        seen.add(admin.topics().getList(namespace).size());
        seen.add(done(() -> admin.topics().unload(topic)));
        seen.add(admin.lookups().lookupTopic(topic).startsWith("pulsar://"));
        seen.add(done(() -> admin.topics().delete(topic)));
        seen.add(done(() -> admin.topics().delete(topic)));
        seen.add(admin.topics().getList(namespace).size());
        return seen;
    }

    static Object partitions(String namespace) throws Exception {
        List<Object> seen = new ArrayList<>();
        String topic = "persistent://" + namespace + "/parts";
        String plain = "persistent://" + namespace + "/plain";
        admin.topics().createNonPartitionedTopic(plain);
        seen.add(done(() -> admin.topics().createPartitionedTopic(topic, 2, Map.of("c", "d"))));
        seen.add(done(() -> admin.topics().createPartitionedTopic(topic, 2)));
        seen.add(admin.topics().getPartitionedTopicMetadata(topic).partitions);
        seen.add(admin.topics().getPartitionedTopicMetadata(topic).properties);
        admin.topics().createSubscription(topic, "s", MessageId.earliest);
        seen.add(done(() -> admin.topics().updatePartitionedTopic(topic, 3)));
        seen.add(done(() -> admin.topics().updatePartitionedTopic(topic, 1)));
        seen.add(done(() -> admin.topics().updatePartitionedTopic(plain, 3)));
        seen.add(admin.topics().getPartitionedTopicList(namespace).size());
        seen.add(admin.topics().getList(namespace).size());
        seen.add(admin.topics().getSubscriptions(topic));
        seen.add(admin.topics().getPartitionedStats(topic, true).getPartitions().size());
        seen.add(outcome(() -> admin.topics().getPartitionedStats(plain, true).getPartitions()));
        seen.add(admin.topics().getPartitionedInternalStats(topic).partitions.size());
        seen.add(done(() -> admin.topics().deletePartitionedTopic(topic)));
        seen.add(done(() -> admin.topics().deletePartitionedTopic(topic)));
        return seen;
    }

    static Object subscriptions(String namespace) throws Exception {
        List<Object> seen = new ArrayList<>();
        String topic = "persistent://" + namespace + "/t";
        admin.topics().createNonPartitionedTopic(topic);
        seen.add(done(() -> admin.topics().createSubscription(topic, "a", MessageId.earliest)));
        seen.add(done(() -> admin.topics().createSubscription(topic, "a", MessageId.earliest)));
        publish(topic, 3);
        seen.add(done(() -> admin.topics().createSubscription(topic, "b", MessageId.latest)));
        seen.add(done(() -> admin.topics().createSubscription(topic, "c:/ d", MessageId.earliest)));
        seen.add(new TreeSet<>(admin.topics().getSubscriptions(topic)));
        Map<String, Long> backlogs = new TreeMap<>();
        for (Map.Entry<String, ? extends SubscriptionStats> one
                : admin.topics().getStats(topic).getSubscriptions().entrySet()) {
            backlogs.put(one.getKey(), one.getValue().getMsgBacklog());
        }
        seen.add(backlogs);
        try (Consumer<byte[]> consumer =
                client.newConsumer().topic(topic).subscriptionName("a").subscribe()) {
            seen.add(told(consumer.receive(10, TimeUnit.SECONDS)));
            seen.add(done(() -> admin.topics().deleteSubscription(topic, "a")));
            SubscriptionStats stats = admin.topics().getStats(topic).getSubscriptions().get("a");
            seen.add(List.of(stats.getType(), stats.getConsumers().size(), stats.isDurable()));
        }
        seen.add(done(() -> admin.topics().deleteSubscription(topic, "c:/ d")));
        seen.add(done(() -> admin.topics().deleteSubscription(topic, "c:/ d")));
        seen.add(done(() -> admin.topics().deleteSubscription(topic, "a", true)));
        seen.add(admin.topics().getSubscriptions(topic));
        return seen;
    }

    static Object cursors(String namespace) throws Exception {
        List<Object> seen = new ArrayList<>();
        String topic = "persistent://" + namespace + "/t";
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().createSubscription(topic, "s", MessageId.earliest);
        publish(topic, 5);
        MessageIdImpl third =
                (MessageIdImpl) admin.topics().peekMessages(topic, "s", 3).get(2).getMessageId();
        admin.topics().skipMessages(topic, "s", 2);
        seen.add(peek(topic, "s", 9));
        admin.topics().skipAllMessages(topic, "s");
        seen.add(peek(topic, "s", 1));
        admin.topics().resetCursor(topic, "s", 0);
        seen.add(peek(topic, "s", 9));
        admin.topics().resetCursor(topic, "s", third);
        seen.add(peek(topic, "s", 9));
        admin.topics().resetCursor(topic, "s", MessageId.latest);
        seen.add(peek(topic, "s", 9));
        admin.topics().resetCursor(topic, "s", MessageId.earliest);
        seen.add(peek(topic, "s", 9));
        admin.topics().createSubscription(topic, "later", third);
        seen.add(peek(topic, "later", 9));
        return seen;
    }

    static Object messages(String namespace) throws Exception {
        List<Object> seen = new ArrayList<>();
        String topic = "persistent://" + namespace + "/t";
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().createSubscription(topic, "s", MessageId.earliest);
        seen.add(((MessageIdImpl) admin.topics().getLastMessageId(topic)).getEntryId());
        publish(topic, 2);
        try (Producer<byte[]> producer = client.newProducer().topic(topic)
                .compressionType(CompressionType.LZ4)
                .batchingMaxPublishDelay(5, TimeUnit.SECONDS).create()) {
            for (int n = 0; n < 3; n++) {
                producer.newMessage().property("b", "é" + n).value(("b" + n).getBytes()).sendAsync();
            }
            producer.flush();
        }
        List<Message<byte[]>> peeked = admin.topics().peekMessages(topic, "s", 3);
        for (Message<byte[]> message : peeked) {
            String key = message.getKey();
            seen.add(List.of(told(message), key == null ? "" : key,
                    String.valueOf(message.getProperties().getOrDefault("n", "")),
                    String.valueOf(message.getProperties().getOrDefault("b", "")),
                    message.getPublishTime() > 0, message.getEventTime()));
        }
        MessageIdImpl first = (MessageIdImpl) peeked.get(0).getMessageId();
        MessageIdImpl last = (MessageIdImpl) admin.topics().getLastMessageId(topic);
        seen.add(last.getEntryId());
        seen.add(last.getLedgerId() == first.getLedgerId());
        seen.add(told(admin.topics().getMessageById(topic, first.getLedgerId(), 1)));
        seen.add(told(admin.topics().examineMessage(topic, "earliest", 1)));
        seen.add(outcome(() -> admin.topics().getMessageById(topic, 999_999, 0)));
        return seen;
    }

    static Object stats(String namespace) throws Exception {
        List<Object> seen = new ArrayList<>();
        String topic = "persistent://" + namespace + "/t";
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().createSubscription(topic, "s", MessageId.earliest);
        publish(topic, 4);
        TopicStats stats = admin.topics().getStats(topic);
        seen.add(List.of(stats.getMsgInCounter(), stats.getPublishers().size(),
                stats.getStorageSize() > 0, stats.getSubscriptions().get("s").getMsgBacklog()));
        var inside = admin.topics().getInternalStats(topic);
        seen.add(List.of(inside.numberOfEntries, inside.cursors.keySet(),
                inside.lastConfirmedEntry.endsWith(":3"), inside.ledgers.size()));
        try (Producer<byte[]> producer =
                client.newProducer().topic(topic).producerName("me").create()) {
            seen.add(admin.topics().getStats(topic).getPublishers().get(0).getProducerName());
            seen.add(done(() -> admin.topics().delete(topic)));
        }
        seen.add(done(() -> admin.topics().delete(topic, true)));
        return seen;
    }

    static String record(String fields) {
        return "{\"type\":\"record\",\"name\":\"R\",\"fields\":[" + fields + "]}";
    }

    static PostSchemaPayload avro(String fields) {
        return new PostSchemaPayload("AVRO", record(fields), Map.of("p", "q"));
    }

    static Object schemas(String namespace) throws Exception {
        List<Object> seen = new ArrayList<>();
        String topic = "persistent://" + namespace + "/t";
        admin.topics().createNonPartitionedTopic(topic);
        admin.namespaces().setSchemaCompatibilityStrategy(
                namespace, SchemaCompatibilityStrategy.BACKWARD);
        String a = "{\"name\":\"a\",\"type\":\"string\"}";
        String b = ",{\"name\":\"b\",\"type\":[\"null\",\"string\"],\"default\":null}";
        seen.add(outcome(() -> admin.schemas().getSchemaInfo(topic)));
        admin.schemas().createSchema(topic, avro(a));
        seen.add(admin.schemas().testCompatibility(topic, avro(a + b)).isCompatibility());
        admin.schemas().createSchema(topic, avro(a + b));
        seen.add(done(() -> admin.schemas().createSchema(
                topic, avro("{\"name\":\"a\",\"type\":\"int\"}"))));
        seen.add(done(() -> admin.schemas().createSchema(
                topic, new PostSchemaPayload("AVRO", "xx", Map.of()))));
        var newest = admin.schemas().getSchemaInfoWithVersion(topic);
        seen.add(List.of(newest.getVersion(), newest.getSchemaInfo().getType().toString(),
                newest.getSchemaInfo().getProperties()));
        seen.add(admin.schemas().getSchemaInfo(topic, 0).getSchemaDefinition().contains("\"b\""));
        seen.add(outcome(() -> admin.schemas().getSchemaInfo(topic, 7)));
        seen.add(admin.schemas().getAllSchemas(topic).size());
        seen.add(admin.schemas().getVersionBySchema(topic, avro(a)));
        admin.schemas().deleteSchema(topic);
        seen.add(outcome(() -> admin.schemas().getSchemaInfo(topic)));
        seen.add(admin.schemas().getAllSchemas(topic).size());
        String pair = "persistent://" + namespace + "/pair";
        admin.topics().createNonPartitionedTopic(pair);
        admin.schemas().createSchema(pair, Schema.KeyValue(Schema.STRING, Schema.INT32).getSchemaInfo());
        seen.add(admin.schemas().getSchemaInfo(pair).getType().toString());
        return seen;
    }

    static Object terminate(String namespace) throws Exception {
        List<Object> seen = new ArrayList<>();
        String topic = "persistent://" + namespace + "/t";
        String parts = "persistent://" + namespace + "/parts";
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().createPartitionedTopic(parts, 2);
        publish(topic, 2);
        MessageIdImpl last = (MessageIdImpl) admin.topics().terminateTopic(topic);
        seen.add(last.getEntryId());
        seen.add(outcome(() -> publish(topic, 1)));
        seen.add(outcome(() -> admin.topics().terminateTopic(parts)));
        seen.add(admin.topics().terminatePartitionedTopic(parts).keySet());
        return seen;
    }

    static Object clients(String namespace) throws Exception {
        List<Object> seen = new ArrayList<>();
        String topic = "persistent://" + namespace + "/made-by-use";
        admin.topics().createPartitionedTopic("persistent://" + namespace + "/made-parts", 2);
        seen.add(publish(topic, 2));
        try (Consumer<byte[]> consumer = client.newConsumer()
                .topicsPattern(Pattern.compile("persistent://" + namespace + "/made-.*"))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscriptionName("s").subscribe()) {
            seen.add(told(consumer.receive(10, TimeUnit.SECONDS)));
            seen.add(told(consumer.receive(10, TimeUnit.SECONDS)));
        }
        seen.add(outcome(() -> publish("persistent://" + tenant + "/none/t", 1)));
        return seen;
    }
}
