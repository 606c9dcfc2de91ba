// The calls of a user of pulsar-admin, one a line, with the official Java client. Usage: AdminCalls
// ADMIN_URL TENANT, a tenant that does not exist. Each line of the output is [NAME, RESULT]: what
// the call returned, and what it left behind where it returns nothing, or {"refused": status,
// "reason": text}. Each call is made once on topics of its own namespace.

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.Brokers;
import org.apache.pulsar.client.admin.BrokerStats;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.TopicPolicies;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.common.policies.data.AuthAction;
import org.apache.pulsar.common.policies.data.AutoTopicCreationOverride;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.ClusterData;
import org.apache.pulsar.common.policies.data.DispatchRate;
import org.apache.pulsar.common.policies.data.PersistencePolicies;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.policies.data.TopicStats;
import org.apache.pulsar.common.protocol.schema.PostSchemaPayload;

public final class AdminCalls {
    interface Call {
        Object run() throws Exception;
    }

    interface Change {
        void run() throws Exception;
    }

    static final String STANDALONE = "standalone";
    static final String AVRO = "{\"type\":\"record\",\"name\":\"R\",\"fields\":"
            + "[{\"name\":\"a\",\"type\":\"string\"}]}";
    static final Map<String, Call> CALLS = new LinkedHashMap<>();
    static PulsarAdmin admin;
    static PulsarClient client;
    static Topics topics;
    static Namespaces namespaces;
    static TopicPolicies policies;
    static String tenant;
    static String ns;
    static String topic;
    static String parts;

    public static void main(String[] given) throws Exception {
        tenant = given[1];
        ns = tenant + "/ns";
        topic = "persistent://" + ns + "/t";
        parts = "persistent://" + ns + "/parts";
        admin = PulsarAdmin.builder().serviceHttpUrl(given[0]).build();
        client = PulsarClient.builder().serviceUrl(given[0]).build();
        topics = admin.topics();
        namespaces = admin.namespaces();
        policies = admin.topicPolicies();
        brokers();
        clusters();
        tenants();
        namespaces();
        namespacePolicies();
        topics();
        subscriptions();
        messages();
        topicPolicies();
        schemas();
        elsewhere();
        ObjectMapper json = new ObjectMapper();
        for (Map.Entry<String, Call> one : CALLS.entrySet()) {
            Object seen;
            try {
                Object found = one.getValue().run();
                seen = found == null ? "nothing" : found;
            } catch (PulsarAdminException error) {
                seen = Map.of("refused", error.getStatusCode(),
                        "reason", String.valueOf(error.getHttpError()));
            } catch (Exception error) {
                seen = Map.of("failed", String.valueOf(error));
            }
            System.out.println(json.writeValueAsString(List.of(one.getKey(), seen)));
            System.out.flush();
        }
        client.close();
        admin.close();
        System.exit(0);
    }

    static void call(String name, Call call) {
        if (CALLS.put(name, call) != null) {
            throw new IllegalStateException(name);
        }
    }

    /** Add a call that returns nothing. */
    static void change(String name, Change change) {
        call(name, () -> {
            change.run();
            return "done";
        });
    }

    static void brokers() {
        Brokers brokers = admin.brokers();
        change("brokers healthcheck", () -> brokers.healthcheck());
        call("brokers version", () -> !brokers.getVersion().isEmpty());
        call("brokers list", () -> brokers.getActiveBrokers(STANDALONE).size());
        call("brokers leader-broker",
                () -> brokers.getLeaderBroker().getServiceUrl().startsWith("http"));
        call("brokers namespaces", () -> brokers.getOwnedNamespaces(
                STANDALONE, brokers.getActiveBrokers(STANDALONE).get(0)) != null);
        call("brokers list-dynamic-config", () -> brokers.getDynamicConfigurationNames() != null);
        call("brokers get-all-dynamic-config", () -> brokers.getAllDynamicConfigurations());
        call("brokers get-runtime-config",
                () -> brokers.getRuntimeConfigurations().containsKey("clusterName"));
        call("brokers get-internal-config",
                () -> brokers.getInternalConfigurationData() != null);
        change("brokers backlog-quota-check", () -> brokers.backlogQuotaCheck());
        change("brokers update-dynamic-config", () -> {
            String name = "dispatchThrottlingRatePerTopicInMsg";
            brokers.updateDynamicConfiguration(name, "0");
            brokers.deleteDynamicConfiguration(name);
        });
        BrokerStats stats = admin.brokerStats();
        call("broker-stats monitoring-metrics", () -> stats.getMetrics().startsWith("["));
        call("broker-stats mbeans", () -> stats.getMBeans().startsWith("["));
        call("broker-stats topics", () -> stats.getTopics().startsWith("{"));
        call("broker-stats load-report", () -> stats.getLoadReport() != null);
        call("broker-stats allocator-stats", () -> stats.getAllocatorStats("default") != null);
    }

    static void clusters() {
        call("clusters list", () -> admin.clusters().getClusters().contains(STANDALONE));
        call("clusters get",
                () -> admin.clusters().getCluster(STANDALONE).getServiceUrl().startsWith("http"));
        call("clusters list-failure-domains", () -> admin.clusters().getFailureDomains(STANDALONE));
        call("clusters get-peer-clusters", () -> {
            Set<String> peers = admin.clusters().getPeerClusterNames(STANDALONE);
            return peers == null ? List.of() : peers;
        });
        call("ns-isolation-policy list",
                () -> admin.clusters().getNamespaceIsolationPolicies(STANDALONE));
        change("clusters create", () -> {
            admin.clusters().createCluster("other-" + tenant,
                    ClusterData.builder().serviceUrl("http://127.0.0.1:1").build());
            admin.clusters().deleteCluster("other-" + tenant);
        });
    }

    static TenantInfo roles(String... roles) {
        return TenantInfo.builder()
                .adminRoles(Set.of(roles)).allowedClusters(Set.of(STANDALONE)).build();
    }

    static void tenants() {
        change("tenants create", () -> admin.tenants().createTenant(tenant, roles("r")));
        call("tenants list", () -> admin.tenants().getTenants().contains(tenant));
        call("tenants get", () -> admin.tenants().getTenantInfo(tenant).getAdminRoles());
        change("tenants update", () -> admin.tenants().updateTenant(tenant, roles("s")));
        change("tenants delete", () -> {
            admin.tenants().createTenant(tenant + "-x", roles("r"));
            admin.tenants().deleteTenant(tenant + "-x");
        });
    }

    static void namespaces() {
        change("namespaces create", () -> namespaces.createNamespace(ns));
        call("namespaces list", () -> namespaces.getNamespaces(tenant).equals(List.of(ns)));
        call("namespaces policies", () -> namespaces.getPolicies(ns).replication_clusters);
        change("namespaces delete", () -> {
            namespaces.createNamespace(tenant + "/gone");
            namespaces.deleteNamespace(tenant + "/gone");
        });
        call("namespaces bundles", () -> !namespaces.getBundles(ns).getBoundaries().isEmpty());
        call("namespaces get-clusters", () -> namespaces.getNamespaceReplicationClusters(ns));
        change("namespaces set-clusters", () ->
                namespaces.setNamespaceReplicationClusters(ns, Set.of(STANDALONE), true));
        call("namespaces permissions", () -> namespaces.getPermissions(ns));
        call("namespaces get-persistence", () -> namespaces.getPersistence(ns) == null);
        change("namespaces set-persistence", () ->
                namespaces.setPersistence(ns, new PersistencePolicies(1, 1, 1, 0)));
        change("namespaces set-property", () -> namespaces.setProperty(ns, "a", "b"));
        call("namespaces get-properties", () -> namespaces.getProperties(ns));
        change("namespaces set-dispatch-rate", () -> namespaces.setDispatchRate(ns,
                DispatchRate.builder().dispatchThrottlingRateInMsg(1000000).build()));
    }

    static void namespacePolicies() {
        call("namespaces set-retention", () -> {
            namespaces.setRetention(ns, new RetentionPolicies(60, 100));
            RetentionPolicies found = namespaces.getRetention(ns);
            return List.of(found.getRetentionTimeInMinutes(), found.getRetentionSizeInMB());
        });
        call("namespaces remove-retention", () -> {
            namespaces.removeRetention(ns);
            return namespaces.getRetention(ns);
        });
        call("namespaces set-message-ttl", () -> {
            namespaces.setNamespaceMessageTTL(ns, 3600);
            return namespaces.getNamespaceMessageTTL(ns);
        });
        call("namespaces remove-message-ttl", () -> {
            namespaces.removeNamespaceMessageTTL(ns);
            return namespaces.getNamespaceMessageTTL(ns);
        });
        call("namespaces set-compaction-threshold", () -> {
            namespaces.setCompactionThreshold(ns, 1L << 40);
            return namespaces.getCompactionThreshold(ns);
        });
        call("namespaces remove-compaction-threshold", () -> {
            namespaces.removeCompactionThreshold(ns);
            return namespaces.getCompactionThreshold(ns);
        });
        call("namespaces set-backlog-quota", () -> {
            namespaces.setBacklogQuota(ns, BacklogQuota.builder().limitSize(1 << 30)
                    .retentionPolicy(BacklogQuota.RetentionPolicy.consumer_backlog_eviction)
                    .build());
            return namespaces.getBacklogQuotaMap(ns)
                    .get(BacklogQuota.BacklogQuotaType.destination_storage).getLimitSize();
        });
        call("namespaces remove-backlog-quota", () -> {
            namespaces.removeBacklogQuota(ns);
            return namespaces.getBacklogQuotaMap(ns);
        });
        call("namespaces set-deduplication", () -> {
            namespaces.setDeduplicationStatus(ns, true);
            return namespaces.getDeduplicationStatus(ns);
        });
        call("namespaces remove-deduplication", () -> {
            namespaces.removeDeduplicationStatus(ns);
            return namespaces.getDeduplicationStatus(ns);
        });
        call("namespaces set-auto-topic-creation", () -> {
            namespaces.setAutoTopicCreation(ns, AutoTopicCreationOverride.builder()
                    .allowAutoTopicCreation(true).topicType("non-partitioned").build());
            return namespaces.getAutoTopicCreation(ns).isAllowAutoTopicCreation();
        });
        call("namespaces set-schema-compatibility-strategy", () -> {
            namespaces.setSchemaCompatibilityStrategy(ns, SchemaCompatibilityStrategy.BACKWARD);
            return namespaces.getSchemaCompatibilityStrategy(ns).toString();
        });
        call("namespaces set-is-allow-auto-update-schema", () -> {
            namespaces.setIsAllowAutoUpdateSchema(ns, true);
            return namespaces.getIsAllowAutoUpdateSchema(ns);
        });
        call("namespaces set-max-consumers-per-topic", () -> {
            namespaces.setMaxConsumersPerTopic(ns, 50);
            return namespaces.getMaxConsumersPerTopic(ns);
        });
        call("namespaces set-max-consumers-per-subscription", () -> {
            namespaces.setMaxConsumersPerSubscription(ns, 40);
            return namespaces.getMaxConsumersPerSubscription(ns);
        });
        call("namespaces set-max-producers-per-topic", () -> {
            namespaces.setMaxProducersPerTopic(ns, 30);
            return namespaces.getMaxProducersPerTopic(ns);
        });
    }

    static void topics() {
        change("topics create", () -> topics.createNonPartitionedTopic(topic));
        change("topics create-partitioned-topic", () -> topics.createPartitionedTopic(parts, 2));
        call("topics get-partitioned-topic-metadata",
                () -> topics.getPartitionedTopicMetadata(parts).partitions);
        call("topics update-partitioned-topic", () -> {
            topics.updatePartitionedTopic(parts, 3);
            return topics.getPartitionedTopicMetadata(parts).partitions;
        });
        call("topics list", () -> new TreeSet<>(topics.getList(ns)).size());
        call("topics list-partitioned-topics", () -> topics.getPartitionedTopicList(ns).size());
        call("namespaces topics", () -> namespaces.getTopics(ns).size());
        call("topics lookup", () -> admin.lookups().lookupTopic(topic).startsWith("pulsar://"));
        call("topics partitioned-lookup",
                () -> admin.lookups().lookupPartitionedTopic(parts).size());
        call("topics bundle-range", () -> admin.lookups().getBundleRange(topic).startsWith("0x"));
        call("topics permissions", () -> topics.getPermissions(topic));
        call("topics update-properties", () -> {
            topics.updateProperties(topic, Map.of("a", "b", "c", "d"));
            return new TreeMap<>(topics.getProperties(topic));
        });
        call("topics remove-properties", () -> {
            topics.removeProperties(topic, "a");
            return topics.getProperties(topic);
        });
        call("topics stats", () -> {
            publish(topic, 3);
            TopicStats stats = topics.getStats(topic, true, true, true);
            return List.of(stats.getMsgInCounter(), stats.getPublishers().size());
        });
        call("topics internal-stats", () -> topics.getInternalStats(topic).numberOfEntries);
        call("topics partitioned-stats",
                () -> topics.getPartitionedStats(parts, true).getPartitions().size());
        call("topics partitioned-internal-stats",
                () -> topics.getPartitionedInternalStats(parts).partitions.size());
        change("topics unload", () -> topics.unload(topic));
        change("namespaces unload", () -> namespaces.unload(ns));
        String apart = "persistent://" + ns + "/apart";
        change("topics compact", () -> {
            topics.createNonPartitionedTopic(apart);
            topics.triggerCompaction(apart);
        });
        change("topics offload", () -> topics.triggerOffload(apart, MessageId.latest));
    }

    static void subscriptions() {
        change("topics create-subscription", () -> {
            for (String name : List.of(topic, parts, "persistent://" + ns + "/apart")) {
                topics.createSubscription(name, "s", MessageId.earliest);
            }
        });
        call("topics subscriptions", () -> topics.getSubscriptions(topic));
        call("topics update-subscription-properties", () -> {
            topics.updateSubscriptionProperties(topic, "s", Map.of("a", "b"));
            return topics.getSubscriptionProperties(topic, "s");
        });
        call("topics analyze-backlog", () -> {
            var found = topics.analyzeSubscriptionBacklog(topic, "s", Optional.empty());
            return List.of(found.getEntries(), found.getMessages());
        });
        call("topics peek-messages", () -> told(topics.peekMessages(topic, "s", 2)));
        call("topics skip", () -> {
            topics.skipMessages(topic, "s", 1);
            return backlog();
        });
        call("topics reset-cursor", () -> {
            topics.resetCursor(topic, "s", 0);
            return backlog();
        });
        call("topics reset-cursor-to-message", () -> {
            MessageIdImpl first = first();
            topics.resetCursor(topic, "s", first, true);
            long behind = backlog();
            topics.resetCursor(topic, "s", first);
            return List.of(behind, backlog());
        });
        call("topics expire-messages", () -> {
            topics.expireMessages(topic, "s", 3600);
            return backlog();
        });
        change("topics expire-messages-all-subscriptions",
                () -> topics.expireMessagesForAllSubscriptions(topic, 3600));
        call("topics clear-backlog", () -> {
            topics.skipAllMessages(topic, "s");
            return backlog();
        });
        call("namespaces clear-backlog", () -> {
            topics.resetCursor(topic, "s", 0);
            namespaces.clearNamespaceBacklog(ns);
            return backlog();
        });
        call("namespaces clear-backlog-of-subscription", () -> {
            topics.resetCursor(topic, "s", 0);
            namespaces.clearNamespaceBacklogForSubscription(ns, "s");
            return backlog();
        });
        change("topics unsubscribe", () -> topics.deleteSubscription(topic, "s"));
    }

    static void messages() {
        call("topics last-message-id", () -> {
            topics.createSubscription(topic, "u", MessageId.latest);
            publish(topic, 3);
            return ((MessageIdImpl) topics.getLastMessageId(topic)).getEntryId() >= 2;
        });
        call("topics get-message-by-id", () -> {
            MessageIdImpl first = first();
            return told(topics.getMessageById(topic, first.getLedgerId(), first.getEntryId()));
        });
        call("topics examine-messages", () -> told(topics.examineMessage(topic, "latest", 1)));
        call("topics get-message-id", () -> ((MessageIdImpl) topics.getMessageIdByTimestamp(
                topic, Long.MAX_VALUE / 2)).getEntryId() >= 2);
        call("topics get-backlog-size",
                () -> topics.getBacklogSizeByMessageId(topic, first()) > 0);
        call("topics truncate", () -> {
            topics.truncate(topic);
            return topics.getStats(topic, true, false, false)
                    .getSubscriptions().get("u").getMsgBacklog();
        });
        call("topics terminate", () -> {
            String ended = "persistent://" + ns + "/ended";
            topics.createNonPartitionedTopic(ended);
            publish(ended, 2);
            return ((MessageIdImpl) topics.terminateTopic(ended)).getEntryId();
        });
        change("topics delete", () -> topics.delete("persistent://" + ns + "/ended", true));
        change("topics delete-partitioned-topic", () -> topics.deletePartitionedTopic(parts));
    }

    static void topicPolicies() {
        call("topicPolicies set-retention", () -> {
            policies.setRetention(topic, new RetentionPolicies(60, 100));
            RetentionPolicies found = until(() -> policies.getRetention(topic));
            return List.of(found.getRetentionTimeInMinutes(), found.getRetentionSizeInMB());
        });
        call("topicPolicies remove-retention", () -> {
            policies.removeRetention(topic);
            return gone(() -> policies.getRetention(topic));
        });
        call("topicPolicies set-message-ttl", () -> {
            policies.setMessageTTL(topic, 3600);
            return until(() -> policies.getMessageTTL(topic));
        });
        call("topicPolicies set-deduplication", () -> {
            policies.setDeduplicationStatus(topic, true);
            return until(() -> policies.getDeduplicationStatus(topic));
        });
        call("topicPolicies set-max-consumers", () -> {
            policies.setMaxConsumers(topic, 5);
            return until(() -> policies.getMaxConsumers(topic));
        });
        call("topicPolicies set-max-consumers-per-subscription", () -> {
            policies.setMaxConsumersPerSubscription(topic, 4);
            return until(() -> policies.getMaxConsumersPerSubscription(topic));
        });
        call("topicPolicies set-max-producers", () -> {
            policies.setMaxProducers(topic, 3);
            return until(() -> policies.getMaxProducers(topic));
        });
        call("topicPolicies set-compaction-threshold", () -> {
            policies.setCompactionThreshold(topic, 1L << 40);
            return until(() -> policies.getCompactionThreshold(topic));
        });
        call("topicPolicies set-backlog-quota", () -> {
            policies.setBacklogQuota(topic, BacklogQuota.builder().limitSize(1 << 29)
                    .retentionPolicy(BacklogQuota.RetentionPolicy.consumer_backlog_eviction)
                    .build());
            return until(() -> policies.getBacklogQuotaMap(topic)
                    .get(BacklogQuota.BacklogQuotaType.destination_storage)).getLimitSize();
        });
    }

    static void schemas() {
        String written = "persistent://" + tenant + "/ns/schemas";
        PostSchemaPayload avro = new PostSchemaPayload("AVRO", AVRO, Map.of());
        change("schemas upload", () -> {
            topics.createNonPartitionedTopic(written);
            admin.schemas().createSchema(written, avro);
        });
        call("schemas get", () -> admin.schemas().getSchemaInfo(written).getType().toString());
        call("schemas compatibility",
                () -> admin.schemas().testCompatibility(written, avro).isCompatibility());
        change("schemas delete", () -> admin.schemas().deleteSchema(written));
    }

    static void elsewhere() {
        change("namespaces grant-permission", () ->
                namespaces.grantPermissionOnNamespace(ns, "someone", Set.of(AuthAction.produce)));
        change("topics grant-permission", () ->
                topics.grantPermission(topic, "someone", Set.of(AuthAction.consume)));
        call("functions list", () -> admin.functions().getFunctions(tenant, "ns"));
        call("sources list", () -> admin.sources().listSources(tenant, "ns"));
        call("packages list", () -> admin.packages().listPackages("function", ns));
        call("transactions coordinators-list",
                () -> admin.transactions().listTransactionCoordinators());
        call("resourcegroups list", () -> admin.resourcegroups().getResourceGroups());
    }

    static void publish(String name, int count) throws Exception {
        try (Producer<byte[]> producer =
                client.newProducer().topic(name).enableBatching(false).create()) {
            for (int n = 0; n < count; n++) {
                producer.send(("m" + n).getBytes());
            }
        }
    }

    static long backlog() throws Exception {
        return topics.getStats(topic, true, false, false)
                .getSubscriptions().get("s").getMsgBacklog();
    }

    static MessageIdImpl first() throws Exception {
        return (MessageIdImpl) topics.examineMessage(topic, "earliest", 1).getMessageId();
    }

    /** Return what there is once there is something: policies of topics come with a delay. */
    static <T> T until(java.util.concurrent.Callable<T> read) throws Exception {
        T found = read.call();
        for (int n = 0; n < 200 && found == null; n++) {
            Thread.sleep(50);
            found = read.call();
        }
        return found;
    }

    static String gone(java.util.concurrent.Callable<?> read) throws Exception {
        for (int n = 0; n < 200 && read.call() != null; n++) {
            Thread.sleep(50);
        }
        return read.call() == null ? "gone" : "still there";
    }

    static List<Object> told(List<Message<byte[]>> messages) {
        List<Object> all = new ArrayList<>();
        for (Message<byte[]> message : messages) {
            all.add(told(message));
        }
        return all;
    }

    static Object told(Message<byte[]> message) {
        return new String(message.getData());
    }
}
