// Asks a broker with Apache's Admin client what consoles and Kafka's tools ask.
// Usage: AdminCalls BOOTSTRAP TOPIC. Prints one line for each call: its name, and what it shows of the topic,
// which has two partitions and records in the first one, or the class of what it ended with.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeProducersResult;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class AdminCalls {
    static final int SECONDS = 30;

    static <T> T wait(KafkaFuture<T> future) throws Exception {
        return future.get(SECONDS, TimeUnit.SECONDS);
    }

    static void call(String name, Callable<Object> call) throws Exception {
        Object shown;
        try {
            shown = call.call();
        } catch (ExecutionException failure) {
            shown = failure.getCause().getClass().getSimpleName();
        }
        System.out.println(name + ": " + shown);
    }

    static Object offset(Admin admin, TopicPartition partition, OffsetSpec spec) throws Exception {
        ListOffsetsResultInfo found = wait(admin.listOffsets(Map.of(partition, spec)).partitionResult(partition));
        return found.offset() + " in epoch " + found.leaderEpoch();
    }

    static Object config(Admin admin, ConfigResource topic, String name) throws Exception {
        return wait(admin.describeConfigs(List.of(topic)).all()).get(topic).get(name).value();
    }

    static Object alter(Admin admin, ConfigResource topic, String name, String value, AlterConfigOp.OpType type)
            throws Exception {
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), type);
        wait(admin.incrementalAlterConfigs(Map.of(topic, List.of(change))).all());
        return config(admin, topic, name);
    }

    // A group of the protocol of KIP-848 with one member.
    static Object consumerGroup(Admin admin, String bootstrap, String topic) throws Exception {
        String group = "g-" + topic;
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", group,
            "group.protocol", "consumer", "group.remote.assignor", "range");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            consumer.subscribe(List.of(topic));
            for (int tries = 0; tries < 200 && consumer.assignment().size() < 2; tries++) {
                consumer.poll(Duration.ofMillis(100));
            }
            ConsumerGroupDescription found = wait(admin.describeConsumerGroups(List.of(group)).all()).get(group);
            MemberDescription member = found.members().iterator().next();
            boolean listed = wait(admin.listGroups(ListGroupsOptions.forConsumerGroups()).all()).stream()
                .anyMatch(one -> one.groupId().equals(group) && one.type().get() == GroupType.CONSUMER);
            return found.type() + " " + found.groupState() + ", " + found.partitionAssignor() + ", "
                + member.assignment().topicPartitions().size() + " partitions, "
                + member.targetAssignment().get().topicPartitions().size() + " of the target, upgraded "
                + member.upgraded().get() + ", listed " + listed;
        }
    }

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        TopicPartition first = new TopicPartition(topic, 0);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) args[0]))) {
            call("describeTopics", () -> {
                TopicDescription found = wait(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
                return found.partitions().size() + " partitions, replicas " + found.partitions().get(1).replicas().size();
            });
            call("describeTopics of a missing one", () -> wait(admin.describeTopics(List.of("no-" + topic)).allTopicNames()));
            call("describeCluster", () -> wait(admin.describeCluster().nodes()).size() + " node");
            call("describeLogDirs", () -> {
                int broker = wait(admin.describeCluster().controller()).id();
                List<Object> sizes = new ArrayList<>();
                for (LogDirDescription folder : wait(admin.describeLogDirs(List.of(broker)).allDescriptions()).get(broker).values()) {
                    for (int index = 0; index < 2; index++) {
                        sizes.add(folder.replicaInfos().get(new TopicPartition(topic, index)).size() > 0);
                    }
                    sizes.add(folder.totalBytes().getAsLong() > folder.usableBytes().getAsLong());
                }
                return sizes;
            });
            call("describeProducers", () -> {
                Map<TopicPartition, DescribeProducersResult.PartitionProducerState> found =
                    wait(admin.describeProducers(List.of(first)).all());
                return found.get(first).activeProducers().size() + " with the last sequence "
                    + found.get(first).activeProducers().get(0).lastSequence();
            });
            call("describeAcls", () -> wait(admin.describeAcls(AclBindingFilter.ANY).values()));
            call("describeClientQuotas", () -> wait(admin.describeClientQuotas(ClientQuotaFilter.all()).entities()));
            call("describeUserScramCredentials", () -> wait(admin.describeUserScramCredentials(List.of("no-" + topic)).description("no-" + topic)));
            call("listPartitionReassignments", () -> wait(admin.listPartitionReassignments().reassignments()));
            call("electLeaders", () -> {
                Optional<Throwable> found = wait(admin.electLeaders(ElectionType.PREFERRED, Set.of(first)).partitions()).get(first);
                return found.get().getClass().getSimpleName();
            });
            // Of other clients of a shared broker there may be some.
            call("listTransactions", () -> wait(admin.listTransactions().all()).stream()
                    .filter(one -> one.transactionalId().contains(topic)).toList());
            call("listConfigResources", () -> {
                Collection<ConfigResource> found = wait(admin.listConfigResources(
                    Set.of(ConfigResource.Type.TOPIC), new ListConfigResourcesOptions()).all());
                return found.contains(resource);
            });
            call("describeConsumerGroups", () -> consumerGroup(admin, args[0], topic));
            for (Map.Entry<String, OffsetSpec> spec : Map.of(
                    "earliest", OffsetSpec.earliest(), "latest", OffsetSpec.latest(),
                    "of the largest timestamp", OffsetSpec.maxTimestamp(),
                    "earliest local", OffsetSpec.earliestLocal(), "latest tiered", OffsetSpec.latestTiered(),
                    "of a time", OffsetSpec.forTimestamp(2)).entrySet()) {
                call("offset " + spec.getKey(), () -> offset(admin, first, spec.getValue()));
            }
            call("cleanup.policy", () -> config(admin, resource, "cleanup.policy"));
            call("append", () -> alter(admin, resource, "cleanup.policy", "delete", AlterConfigOp.OpType.APPEND));
            call("subtract", () -> alter(admin, resource, "cleanup.policy", "delete", AlterConfigOp.OpType.SUBTRACT));
            call("segment.bytes", () -> alter(admin, resource, "segment.bytes", "52428800", AlterConfigOp.OpType.SET));
            call("an unknown config", () -> alter(admin, resource, "no.such", "1", AlterConfigOp.OpType.SET));
            Callable<Object> delete = () -> wait(admin.deleteRecords(
                Map.of(first, RecordsToDelete.beforeOffset(2))).lowWatermarks().get(first)).lowWatermark();
            call("deleteRecords of a topic that is only compacted", delete);
            alter(admin, resource, "cleanup.policy", "delete", AlterConfigOp.OpType.APPEND);
            call("deleteRecords", delete);
            call("offset earliest then", () -> offset(admin, first, OffsetSpec.earliest()));
        }
    }
}
