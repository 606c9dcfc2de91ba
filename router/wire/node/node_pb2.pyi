from router.wire.pulsar import pulsar_pb2 as _pulsar_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeCommand(_message.Message):
    __slots__ = ("admin", "admin_response", "claim", "claim_update", "release", "poll", "polled", "done", "retain")
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    ADMIN_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    CLAIM_UPDATE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    POLL_FIELD_NUMBER: _ClassVar[int]
    POLLED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RETAIN_FIELD_NUMBER: _ClassVar[int]
    admin: CommandAdmin
    admin_response: CommandAdminResponse
    claim: CommandClaim
    claim_update: CommandClaimUpdate
    release: CommandRelease
    poll: CommandPoll
    polled: CommandPolled
    done: CommandDone
    retain: CommandRetain
    def __init__(self, admin: _Optional[_Union[CommandAdmin, _Mapping]] = ..., admin_response: _Optional[_Union[CommandAdminResponse, _Mapping]] = ..., claim: _Optional[_Union[CommandClaim, _Mapping]] = ..., claim_update: _Optional[_Union[CommandClaimUpdate, _Mapping]] = ..., release: _Optional[_Union[CommandRelease, _Mapping]] = ..., poll: _Optional[_Union[CommandPoll, _Mapping]] = ..., polled: _Optional[_Union[CommandPolled, _Mapping]] = ..., done: _Optional[_Union[CommandDone, _Mapping]] = ..., retain: _Optional[_Union[CommandRetain, _Mapping]] = ...) -> None: ...

class CommandAdmin(_message.Message):
    __slots__ = ("request_id", "registry_after", "create_topic", "delete_topic", "list_topics", "describe_topic", "delete_subscription", "reset_subscription", "take_token", "push_metrics", "get_metrics", "check_space", "create_subscription", "registry_get", "registry_put", "registry_delete", "registry_list", "confirm", "confirm_all", "recall", "terminate_topic", "acknowledge", "describe_cursors", "list_tenants", "put_tenant", "delete_tenant", "list_namespaces", "create_namespace", "delete_namespace", "get_namespace", "change_policies", "update_partitions", "skip_messages", "read_entry", "describe_clients", "list_schemas", "put_schema", "delete_schema", "locate_messages", "describe_group", "nats_request", "cancel_nats_request", "begin_backup", "end_backup", "call", "nats_acknowledge")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    CREATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    DELETE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    LIST_TOPICS_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    DELETE_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    RESET_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TAKE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PUSH_METRICS_FIELD_NUMBER: _ClassVar[int]
    GET_METRICS_FIELD_NUMBER: _ClassVar[int]
    CHECK_SPACE_FIELD_NUMBER: _ClassVar[int]
    CREATE_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_GET_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_PUT_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_DELETE_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_LIST_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_ALL_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    TERMINATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_CURSORS_FIELD_NUMBER: _ClassVar[int]
    LIST_TENANTS_FIELD_NUMBER: _ClassVar[int]
    PUT_TENANT_FIELD_NUMBER: _ClassVar[int]
    DELETE_TENANT_FIELD_NUMBER: _ClassVar[int]
    LIST_NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    CREATE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DELETE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GET_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_POLICIES_FIELD_NUMBER: _ClassVar[int]
    UPDATE_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SKIP_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    READ_ENTRY_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    LIST_SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    PUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    DELETE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    LOCATE_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_GROUP_FIELD_NUMBER: _ClassVar[int]
    NATS_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CANCEL_NATS_REQUEST_FIELD_NUMBER: _ClassVar[int]
    BEGIN_BACKUP_FIELD_NUMBER: _ClassVar[int]
    END_BACKUP_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    NATS_ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    registry_after: str
    create_topic: CreateTopic
    delete_topic: TopicRef
    list_topics: ListTopics
    describe_topic: TopicRef
    delete_subscription: SubscriptionRef
    reset_subscription: ResetSubscription
    take_token: TakeToken
    push_metrics: PushMetrics
    get_metrics: Nothing
    check_space: Nothing
    create_subscription: CreateSubscription
    registry_get: RegistryRef
    registry_put: RegistryPut
    registry_delete: RegistryRef
    registry_list: str
    confirm: ConfirmLease
    confirm_all: ConfirmLeases
    recall: RecallClaims
    terminate_topic: TopicRef
    acknowledge: AcknowledgePositions
    describe_cursors: DescribeCursors
    list_tenants: ListNames
    put_tenant: PutTenant
    delete_tenant: str
    list_namespaces: ListNames
    create_namespace: CreateNamespace
    delete_namespace: DeleteNamespace
    get_namespace: str
    change_policies: ChangePolicies
    update_partitions: UpdatePartitions
    skip_messages: SkipMessages
    read_entry: ReadEntry
    describe_clients: DescribeClients
    list_schemas: ListSchemas
    put_schema: PutSchema
    delete_schema: TopicRef
    locate_messages: LocateMessages
    describe_group: SubscriptionRef
    nats_request: NatsRequest
    cancel_nats_request: int
    begin_backup: Nothing
    end_backup: int
    call: AdminCall
    nats_acknowledge: NatsAcknowledge
    def __init__(self, request_id: _Optional[int] = ..., registry_after: _Optional[str] = ..., create_topic: _Optional[_Union[CreateTopic, _Mapping]] = ..., delete_topic: _Optional[_Union[TopicRef, _Mapping]] = ..., list_topics: _Optional[_Union[ListTopics, _Mapping]] = ..., describe_topic: _Optional[_Union[TopicRef, _Mapping]] = ..., delete_subscription: _Optional[_Union[SubscriptionRef, _Mapping]] = ..., reset_subscription: _Optional[_Union[ResetSubscription, _Mapping]] = ..., take_token: _Optional[_Union[TakeToken, _Mapping]] = ..., push_metrics: _Optional[_Union[PushMetrics, _Mapping]] = ..., get_metrics: _Optional[_Union[Nothing, _Mapping]] = ..., check_space: _Optional[_Union[Nothing, _Mapping]] = ..., create_subscription: _Optional[_Union[CreateSubscription, _Mapping]] = ..., registry_get: _Optional[_Union[RegistryRef, _Mapping]] = ..., registry_put: _Optional[_Union[RegistryPut, _Mapping]] = ..., registry_delete: _Optional[_Union[RegistryRef, _Mapping]] = ..., registry_list: _Optional[str] = ..., confirm: _Optional[_Union[ConfirmLease, _Mapping]] = ..., confirm_all: _Optional[_Union[ConfirmLeases, _Mapping]] = ..., recall: _Optional[_Union[RecallClaims, _Mapping]] = ..., terminate_topic: _Optional[_Union[TopicRef, _Mapping]] = ..., acknowledge: _Optional[_Union[AcknowledgePositions, _Mapping]] = ..., describe_cursors: _Optional[_Union[DescribeCursors, _Mapping]] = ..., list_tenants: _Optional[_Union[ListNames, _Mapping]] = ..., put_tenant: _Optional[_Union[PutTenant, _Mapping]] = ..., delete_tenant: _Optional[str] = ..., list_namespaces: _Optional[_Union[ListNames, _Mapping]] = ..., create_namespace: _Optional[_Union[CreateNamespace, _Mapping]] = ..., delete_namespace: _Optional[_Union[DeleteNamespace, _Mapping]] = ..., get_namespace: _Optional[str] = ..., change_policies: _Optional[_Union[ChangePolicies, _Mapping]] = ..., update_partitions: _Optional[_Union[UpdatePartitions, _Mapping]] = ..., skip_messages: _Optional[_Union[SkipMessages, _Mapping]] = ..., read_entry: _Optional[_Union[ReadEntry, _Mapping]] = ..., describe_clients: _Optional[_Union[DescribeClients, _Mapping]] = ..., list_schemas: _Optional[_Union[ListSchemas, _Mapping]] = ..., put_schema: _Optional[_Union[PutSchema, _Mapping]] = ..., delete_schema: _Optional[_Union[TopicRef, _Mapping]] = ..., locate_messages: _Optional[_Union[LocateMessages, _Mapping]] = ..., describe_group: _Optional[_Union[SubscriptionRef, _Mapping]] = ..., nats_request: _Optional[_Union[NatsRequest, _Mapping]] = ..., cancel_nats_request: _Optional[int] = ..., begin_backup: _Optional[_Union[Nothing, _Mapping]] = ..., end_backup: _Optional[int] = ..., call: _Optional[_Union[AdminCall, _Mapping]] = ..., nats_acknowledge: _Optional[_Union[NatsAcknowledge, _Mapping]] = ...) -> None: ...

class CommandAdminResponse(_message.Message):
    __slots__ = ("request_id", "code", "message", "topics", "stats", "token", "metrics", "records", "deleted", "more", "last_positions", "cursors", "tenants", "namespaces", "entry", "clients", "schemas", "located", "group", "nats_messages", "backup", "value", "acknowledged", "fenced")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    LAST_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    LOCATED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NATS_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    code: str
    message: str
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    stats: TopicStats
    token: TokenAnswer
    metrics: str
    records: _containers.RepeatedCompositeFieldContainer[RegistryRecord]
    deleted: bool
    more: bool
    last_positions: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.MessageIdData]
    cursors: _containers.RepeatedCompositeFieldContainer[CursorState]
    tenants: _containers.RepeatedCompositeFieldContainer[Tenant]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceInfo]
    entry: StoredEntry
    clients: _containers.RepeatedCompositeFieldContainer[ClientInfo]
    schemas: _containers.RepeatedCompositeFieldContainer[SchemaVersion]
    located: _containers.RepeatedCompositeFieldContainer[TopicExtents]
    group: GroupMembers
    nats_messages: _containers.RepeatedCompositeFieldContainer[NatsMessage]
    backup: BackupCut
    value: bytes
    acknowledged: int
    fenced: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ..., stats: _Optional[_Union[TopicStats, _Mapping]] = ..., token: _Optional[_Union[TokenAnswer, _Mapping]] = ..., metrics: _Optional[str] = ..., records: _Optional[_Iterable[_Union[RegistryRecord, _Mapping]]] = ..., deleted: _Optional[bool] = ..., more: _Optional[bool] = ..., last_positions: _Optional[_Iterable[_Union[_pulsar_pb2.MessageIdData, _Mapping]]] = ..., cursors: _Optional[_Iterable[_Union[CursorState, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[Tenant, _Mapping]]] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceInfo, _Mapping]]] = ..., entry: _Optional[_Union[StoredEntry, _Mapping]] = ..., clients: _Optional[_Iterable[_Union[ClientInfo, _Mapping]]] = ..., schemas: _Optional[_Iterable[_Union[SchemaVersion, _Mapping]]] = ..., located: _Optional[_Iterable[_Union[TopicExtents, _Mapping]]] = ..., group: _Optional[_Union[GroupMembers, _Mapping]] = ..., nats_messages: _Optional[_Iterable[_Union[NatsMessage, _Mapping]]] = ..., backup: _Optional[_Union[BackupCut, _Mapping]] = ..., value: _Optional[bytes] = ..., acknowledged: _Optional[int] = ..., fenced: _Optional[_Iterable[int]] = ...) -> None: ...

class AdminCall(_message.Message):
    __slots__ = ("name", "arguments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments: bytes
    def __init__(self, name: _Optional[str] = ..., arguments: _Optional[bytes] = ...) -> None: ...

class BackupCut(_message.Message):
    __slots__ = ("id", "journal_first", "journal_last", "journal_size")
    ID_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIRST_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_LAST_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    id: int
    journal_first: int
    journal_last: int
    journal_size: int
    def __init__(self, id: _Optional[int] = ..., journal_first: _Optional[int] = ..., journal_last: _Optional[int] = ..., journal_size: _Optional[int] = ...) -> None: ...

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegistryRef(_message.Message):
    __slots__ = ("kind", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class RegistryRecord(_message.Message):
    __slots__ = ("name", "value", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    version: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class RegistryPut(_message.Message):
    __slots__ = ("kind", "name", "value", "expected")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    value: bytes
    expected: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., value: _Optional[bytes] = ..., expected: _Optional[int] = ...) -> None: ...

class ConfirmLease(_message.Message):
    __slots__ = ("topic", "subscription", "partition", "generation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    partition: int
    generation: int
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., partition: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class ConfirmLeases(_message.Message):
    __slots__ = ("grants",)
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[ConfirmLease]
    def __init__(self, grants: _Optional[_Iterable[_Union[ConfirmLease, _Mapping]]] = ...) -> None: ...

class RecallClaims(_message.Message):
    __slots__ = ("topic", "subscription")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("consumer", "node", "polls", "polling_ms", "idle_ms", "client")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    POLLS_FIELD_NUMBER: _ClassVar[int]
    POLLING_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    node: str
    polls: int
    polling_ms: int
    idle_ms: int
    client: str
    def __init__(self, consumer: _Optional[str] = ..., node: _Optional[str] = ..., polls: _Optional[int] = ..., polling_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ..., client: _Optional[str] = ...) -> None: ...

class GroupLease(_message.Message):
    __slots__ = ("partition", "node", "consumer", "waiting")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    partition: int
    node: str
    consumer: str
    waiting: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, partition: _Optional[int] = ..., node: _Optional[str] = ..., consumer: _Optional[str] = ..., waiting: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupMembers(_message.Message):
    __slots__ = ("members", "leases", "cut", "unavailable_reason")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_REASON_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    leases: _containers.RepeatedCompositeFieldContainer[GroupLease]
    cut: bool
    unavailable_reason: str
    def __init__(self, members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[GroupLease, _Mapping]]] = ..., cut: _Optional[bool] = ..., unavailable_reason: _Optional[str] = ...) -> None: ...

class TopicRef(_message.Message):
    __slots__ = ("topic", "after_partition", "after_subscription")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_PARTITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    after_partition: int
    after_subscription: str
    def __init__(self, topic: _Optional[str] = ..., after_partition: _Optional[int] = ..., after_subscription: _Optional[str] = ...) -> None: ...

class CreateTopic(_message.Message):
    __slots__ = ("topic", "partitions", "policies", "properties")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    policies: Policies
    properties: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.KeyValue]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., policies: _Optional[_Union[Policies, _Mapping]] = ..., properties: _Optional[_Iterable[_Union[_pulsar_pb2.KeyValue, _Mapping]]] = ...) -> None: ...

class Policies(_message.Message):
    __slots__ = ("retention_ms", "retention_bytes", "backlog_bytes", "deduplication", "ttl_seconds", "max_producers", "max_consumers", "max_consumers_per_subscription", "schema_compatibility", "schema_validation_enforced", "schema_auto_update", "auto_create", "auto_partitions", "cleanup_policy", "delete_retention_ms", "min_compaction_lag_ms", "max_compaction_lag_ms", "min_cleanable_dirty_ratio", "compaction_threshold")
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATION_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONSUMERS_PER_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VALIDATION_ENFORCED_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_AUTO_UPDATE_FIELD_NUMBER: _ClassVar[int]
    AUTO_CREATE_FIELD_NUMBER: _ClassVar[int]
    AUTO_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CLEANUP_POLICY_FIELD_NUMBER: _ClassVar[int]
    DELETE_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_COMPACTION_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_COMPACTION_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_CLEANABLE_DIRTY_RATIO_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    retention_ms: int
    retention_bytes: int
    backlog_bytes: int
    deduplication: bool
    ttl_seconds: int
    max_producers: int
    max_consumers: int
    max_consumers_per_subscription: int
    schema_compatibility: str
    schema_validation_enforced: bool
    schema_auto_update: bool
    auto_create: bool
    auto_partitions: int
    cleanup_policy: str
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    compaction_threshold: int
    def __init__(self, retention_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., backlog_bytes: _Optional[int] = ..., deduplication: _Optional[bool] = ..., ttl_seconds: _Optional[int] = ..., max_producers: _Optional[int] = ..., max_consumers: _Optional[int] = ..., max_consumers_per_subscription: _Optional[int] = ..., schema_compatibility: _Optional[str] = ..., schema_validation_enforced: _Optional[bool] = ..., schema_auto_update: _Optional[bool] = ..., auto_create: _Optional[bool] = ..., auto_partitions: _Optional[int] = ..., cleanup_policy: _Optional[str] = ..., delete_retention_ms: _Optional[int] = ..., min_compaction_lag_ms: _Optional[int] = ..., max_compaction_lag_ms: _Optional[int] = ..., min_cleanable_dirty_ratio: _Optional[float] = ..., compaction_threshold: _Optional[int] = ...) -> None: ...

class ListTopics(_message.Message):
    __slots__ = ("namespace", "after")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    after: str
    def __init__(self, namespace: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("topic", "partitions", "policies", "properties", "created_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    policies: Policies
    properties: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.KeyValue]
    created_ms: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., policies: _Optional[_Union[Policies, _Mapping]] = ..., properties: _Optional[_Iterable[_Union[_pulsar_pb2.KeyValue, _Mapping]]] = ..., created_ms: _Optional[int] = ...) -> None: ...

class SubscriptionRef(_message.Message):
    __slots__ = ("topic", "subscription", "force")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    force: bool
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class CreateSubscription(_message.Message):
    __slots__ = ("topic", "subscription", "earliest", "timestamp_ms", "position")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    earliest: bool
    timestamp_ms: int
    position: _pulsar_pb2.MessageIdData
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., earliest: _Optional[bool] = ..., timestamp_ms: _Optional[int] = ..., position: _Optional[_Union[_pulsar_pb2.MessageIdData, _Mapping]] = ...) -> None: ...

class ResetSubscription(_message.Message):
    __slots__ = ("topic", "subscription", "earliest", "latest", "timestamp_ms", "position", "positions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    earliest: bool
    latest: bool
    timestamp_ms: int
    position: _pulsar_pb2.MessageIdData
    positions: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.MessageIdData]
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., timestamp_ms: _Optional[int] = ..., position: _Optional[_Union[_pulsar_pb2.MessageIdData, _Mapping]] = ..., positions: _Optional[_Iterable[_Union[_pulsar_pb2.MessageIdData, _Mapping]]] = ...) -> None: ...

class TopicStats(_message.Message):
    __slots__ = ("info", "partitions", "subscriptions")
    INFO_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    info: TopicInfo
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionStats]
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionStats]
    def __init__(self, info: _Optional[_Union[TopicInfo, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionStats, _Mapping]]] = ..., subscriptions: _Optional[_Iterable[_Union[SubscriptionStats, _Mapping]]] = ...) -> None: ...

class PartitionStats(_message.Message):
    __slots__ = ("partition", "ledger", "first_entry", "next_entry", "messages", "bytes", "producers", "deleted", "message_rate", "byte_rate", "undecided")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    NEXT_ENTRY_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_RATE_FIELD_NUMBER: _ClassVar[int]
    BYTE_RATE_FIELD_NUMBER: _ClassVar[int]
    UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    ledger: int
    first_entry: int
    next_entry: int
    messages: int
    bytes: int
    producers: int
    deleted: int
    message_rate: float
    byte_rate: float
    undecided: int
    def __init__(self, partition: _Optional[int] = ..., ledger: _Optional[int] = ..., first_entry: _Optional[int] = ..., next_entry: _Optional[int] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ..., producers: _Optional[int] = ..., deleted: _Optional[int] = ..., message_rate: _Optional[float] = ..., byte_rate: _Optional[float] = ..., undecided: _Optional[int] = ...) -> None: ...

class SubscriptionStats(_message.Message):
    __slots__ = ("name", "partition", "backlog", "consumers", "mark_delete", "durable", "last_used_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    MARK_DELETE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partition: int
    backlog: int
    consumers: int
    mark_delete: int
    durable: bool
    last_used_ms: int
    def __init__(self, name: _Optional[str] = ..., partition: _Optional[int] = ..., backlog: _Optional[int] = ..., consumers: _Optional[int] = ..., mark_delete: _Optional[int] = ..., durable: _Optional[bool] = ..., last_used_ms: _Optional[int] = ...) -> None: ...

class AcknowledgePositions(_message.Message):
    __slots__ = ("topic", "subscription", "message_id", "cumulative")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    message_id: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.MessageIdData]
    cumulative: bool
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., message_id: _Optional[_Iterable[_Union[_pulsar_pb2.MessageIdData, _Mapping]]] = ..., cumulative: _Optional[bool] = ...) -> None: ...

class DescribeCursors(_message.Message):
    __slots__ = ("topic", "subscription", "after_partition", "after_subscription", "earliest")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    AFTER_PARTITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    after_partition: int
    after_subscription: str
    earliest: bool
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., after_partition: _Optional[int] = ..., after_subscription: _Optional[str] = ..., earliest: _Optional[bool] = ...) -> None: ...

class CursorState(_message.Message):
    __slots__ = ("partition", "subscription", "ledger_id", "mark_delete", "acknowledged", "partial", "backlog", "cut", "durable", "created_ms", "last_used_ms", "properties", "unacked", "type", "replicated", "earliest_ms", "messages_out", "bytes_out")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MARK_DELETE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_MS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    UNACKED_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REPLICATED_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    partition: int
    subscription: str
    ledger_id: int
    mark_delete: int
    acknowledged: _containers.RepeatedCompositeFieldContainer[EntryRange]
    partial: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.MessageIdData]
    backlog: int
    cut: bool
    durable: bool
    created_ms: int
    last_used_ms: int
    properties: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.KeyValue]
    unacked: int
    type: str
    replicated: bool
    earliest_ms: int
    messages_out: int
    bytes_out: int
    def __init__(self, partition: _Optional[int] = ..., subscription: _Optional[str] = ..., ledger_id: _Optional[int] = ..., mark_delete: _Optional[int] = ..., acknowledged: _Optional[_Iterable[_Union[EntryRange, _Mapping]]] = ..., partial: _Optional[_Iterable[_Union[_pulsar_pb2.MessageIdData, _Mapping]]] = ..., backlog: _Optional[int] = ..., cut: _Optional[bool] = ..., durable: _Optional[bool] = ..., created_ms: _Optional[int] = ..., last_used_ms: _Optional[int] = ..., properties: _Optional[_Iterable[_Union[_pulsar_pb2.KeyValue, _Mapping]]] = ..., unacked: _Optional[int] = ..., type: _Optional[str] = ..., replicated: _Optional[bool] = ..., earliest_ms: _Optional[int] = ..., messages_out: _Optional[int] = ..., bytes_out: _Optional[int] = ...) -> None: ...

class EntryRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class ListNames(_message.Message):
    __slots__ = ("under", "after")
    UNDER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    under: str
    after: str
    def __init__(self, under: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class Tenant(_message.Message):
    __slots__ = ("name", "admin_roles", "allowed_clusters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ROLES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    admin_roles: _containers.RepeatedScalarFieldContainer[str]
    allowed_clusters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., admin_roles: _Optional[_Iterable[str]] = ..., allowed_clusters: _Optional[_Iterable[str]] = ...) -> None: ...

class PutTenant(_message.Message):
    __slots__ = ("tenant", "exists")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    exists: bool
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., exists: _Optional[bool] = ...) -> None: ...

class CreateNamespace(_message.Message):
    __slots__ = ("namespace", "policies")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    policies: Policies
    def __init__(self, namespace: _Optional[str] = ..., policies: _Optional[_Union[Policies, _Mapping]] = ...) -> None: ...

class DeleteNamespace(_message.Message):
    __slots__ = ("namespace", "force")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    force: bool
    def __init__(self, namespace: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class NamespaceInfo(_message.Message):
    __slots__ = ("name", "policies", "created_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    policies: Policies
    created_ms: int
    def __init__(self, name: _Optional[str] = ..., policies: _Optional[_Union[Policies, _Mapping]] = ..., created_ms: _Optional[int] = ...) -> None: ...

class ChangePolicies(_message.Message):
    __slots__ = ("namespace", "topic", "policies", "clear")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    topic: str
    policies: Policies
    clear: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[str] = ..., topic: _Optional[str] = ..., policies: _Optional[_Union[Policies, _Mapping]] = ..., clear: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdatePartitions(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class SkipMessages(_message.Message):
    __slots__ = ("topic", "subscription", "count", "all", "before_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    count: int
    all: bool
    before_ms: int
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., count: _Optional[int] = ..., all: _Optional[bool] = ..., before_ms: _Optional[int] = ...) -> None: ...

class ReadEntry(_message.Message):
    __slots__ = ("topic", "entry", "subscription", "earliest", "latest", "nth")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    NTH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    entry: int
    subscription: str
    earliest: bool
    latest: bool
    nth: int
    def __init__(self, topic: _Optional[str] = ..., entry: _Optional[int] = ..., subscription: _Optional[str] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., nth: _Optional[int] = ...) -> None: ...

class StoredEntry(_message.Message):
    __slots__ = ("message_id", "payload", "timestamp_ms", "index")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    message_id: _pulsar_pb2.MessageIdData
    payload: bytes
    timestamp_ms: int
    index: int
    def __init__(self, message_id: _Optional[_Union[_pulsar_pb2.MessageIdData, _Mapping]] = ..., payload: _Optional[bytes] = ..., timestamp_ms: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class LocateMessages(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicRanges]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicRanges, _Mapping]]] = ...) -> None: ...

class TopicRanges(_message.Message):
    __slots__ = ("topic", "ranges")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    ranges: _containers.RepeatedCompositeFieldContainer[PartitionRange]
    def __init__(self, topic: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[PartitionRange, _Mapping]]] = ...) -> None: ...

class PartitionRange(_message.Message):
    __slots__ = ("partition", "entry", "messages", "index", "time_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    entry: int
    messages: int
    index: int
    time_ms: int
    def __init__(self, partition: _Optional[int] = ..., entry: _Optional[int] = ..., messages: _Optional[int] = ..., index: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

class TopicExtents(_message.Message):
    __slots__ = ("missing", "extents")
    MISSING_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    missing: bool
    extents: _containers.RepeatedCompositeFieldContainer[Extent]
    def __init__(self, missing: _Optional[bool] = ..., extents: _Optional[_Iterable[_Union[Extent, _Mapping]]] = ...) -> None: ...

class Extent(_message.Message):
    __slots__ = ("partition", "ledger_id", "first_entry", "first_index", "next_entry", "next_index", "start_entry", "start_index", "end_entry", "end_index", "size", "removed_entry", "given_up")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    NEXT_ENTRY_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    START_ENTRY_FIELD_NUMBER: _ClassVar[int]
    START_INDEX_FIELD_NUMBER: _ClassVar[int]
    END_ENTRY_FIELD_NUMBER: _ClassVar[int]
    END_INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_ENTRY_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    partition: int
    ledger_id: int
    first_entry: int
    first_index: int
    next_entry: int
    next_index: int
    start_entry: int
    start_index: int
    end_entry: int
    end_index: int
    size: int
    removed_entry: int
    given_up: _containers.RepeatedCompositeFieldContainer[EntryRange]
    def __init__(self, partition: _Optional[int] = ..., ledger_id: _Optional[int] = ..., first_entry: _Optional[int] = ..., first_index: _Optional[int] = ..., next_entry: _Optional[int] = ..., next_index: _Optional[int] = ..., start_entry: _Optional[int] = ..., start_index: _Optional[int] = ..., end_entry: _Optional[int] = ..., end_index: _Optional[int] = ..., size: _Optional[int] = ..., removed_entry: _Optional[int] = ..., given_up: _Optional[_Iterable[_Union[EntryRange, _Mapping]]] = ...) -> None: ...

class DescribeClients(_message.Message):
    __slots__ = ("topic", "after")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    after: int
    def __init__(self, topic: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class ClientInfo(_message.Message):
    __slots__ = ("partition", "name", "id", "address", "version", "subscription", "permits", "unacked", "connected_ms", "dropped", "metadata", "access", "messages", "bytes", "message_rate", "byte_rate", "redelivery_rate", "ack_rate")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PERMITS_FIELD_NUMBER: _ClassVar[int]
    UNACKED_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_MS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_RATE_FIELD_NUMBER: _ClassVar[int]
    BYTE_RATE_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_RATE_FIELD_NUMBER: _ClassVar[int]
    ACK_RATE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    name: str
    id: int
    address: str
    version: str
    subscription: str
    permits: int
    unacked: int
    connected_ms: int
    dropped: int
    metadata: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.KeyValue]
    access: _pulsar_pb2.ProducerAccessMode
    messages: int
    bytes: int
    message_rate: float
    byte_rate: float
    redelivery_rate: float
    ack_rate: float
    def __init__(self, partition: _Optional[int] = ..., name: _Optional[str] = ..., id: _Optional[int] = ..., address: _Optional[str] = ..., version: _Optional[str] = ..., subscription: _Optional[str] = ..., permits: _Optional[int] = ..., unacked: _Optional[int] = ..., connected_ms: _Optional[int] = ..., dropped: _Optional[int] = ..., metadata: _Optional[_Iterable[_Union[_pulsar_pb2.KeyValue, _Mapping]]] = ..., access: _Optional[_Union[_pulsar_pb2.ProducerAccessMode, str]] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ..., message_rate: _Optional[float] = ..., byte_rate: _Optional[float] = ..., redelivery_rate: _Optional[float] = ..., ack_rate: _Optional[float] = ...) -> None: ...

class ListSchemas(_message.Message):
    __slots__ = ("topic", "first")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    first: int
    def __init__(self, topic: _Optional[str] = ..., first: _Optional[int] = ...) -> None: ...

class PutSchema(_message.Message):
    __slots__ = ("topic", "schema", "try_only")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TRY_ONLY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    schema: _pulsar_pb2.Schema
    try_only: bool
    def __init__(self, topic: _Optional[str] = ..., schema: _Optional[_Union[_pulsar_pb2.Schema, _Mapping]] = ..., try_only: _Optional[bool] = ...) -> None: ...

class SchemaVersion(_message.Message):
    __slots__ = ("version", "schema", "created_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    schema: _pulsar_pb2.Schema
    created_ms: int
    def __init__(self, version: _Optional[int] = ..., schema: _Optional[_Union[_pulsar_pb2.Schema, _Mapping]] = ..., created_ms: _Optional[int] = ...) -> None: ...

class TakeToken(_message.Message):
    __slots__ = ("bucket", "per_minute", "burst", "look_only")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    BURST_FIELD_NUMBER: _ClassVar[int]
    LOOK_ONLY_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    per_minute: float
    burst: int
    look_only: bool
    def __init__(self, bucket: _Optional[str] = ..., per_minute: _Optional[float] = ..., burst: _Optional[int] = ..., look_only: _Optional[bool] = ...) -> None: ...

class TokenAnswer(_message.Message):
    __slots__ = ("granted", "retry_after_ms")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    retry_after_ms: int
    def __init__(self, granted: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class PushMetrics(_message.Message):
    __slots__ = ("counters", "gauges")
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    GAUGES_FIELD_NUMBER: _ClassVar[int]
    counters: _containers.RepeatedCompositeFieldContainer[Sample]
    gauges: _containers.RepeatedCompositeFieldContainer[Sample]
    def __init__(self, counters: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., gauges: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("name", "labels", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.KeyValue]
    value: float
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[_pulsar_pb2.KeyValue, _Mapping]]] = ..., value: _Optional[float] = ...) -> None: ...

class CommandClaim(_message.Message):
    __slots__ = ("claim_id", "topic", "subscription", "consumer", "partitions", "empty_polls_per_minute")
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_POLLS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    claim_id: int
    topic: str
    subscription: str
    consumer: str
    partitions: int
    empty_polls_per_minute: int
    def __init__(self, claim_id: _Optional[int] = ..., topic: _Optional[str] = ..., subscription: _Optional[str] = ..., consumer: _Optional[str] = ..., partitions: _Optional[int] = ..., empty_polls_per_minute: _Optional[int] = ...) -> None: ...

class CommandClaimUpdate(_message.Message):
    __slots__ = ("claim_id", "granted", "revoked", "holder", "limited_ms", "code", "message", "withdrawn", "unavailable_reason", "waiting", "recalled")
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    LIMITED_MS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_REASON_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RECALLED_FIELD_NUMBER: _ClassVar[int]
    claim_id: int
    granted: _containers.RepeatedCompositeFieldContainer[Grant]
    revoked: _containers.RepeatedScalarFieldContainer[int]
    holder: str
    limited_ms: int
    code: str
    message: str
    withdrawn: _containers.RepeatedScalarFieldContainer[int]
    unavailable_reason: str
    waiting: bool
    recalled: bool
    def __init__(self, claim_id: _Optional[int] = ..., granted: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., revoked: _Optional[_Iterable[int]] = ..., holder: _Optional[str] = ..., limited_ms: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., withdrawn: _Optional[_Iterable[int]] = ..., unavailable_reason: _Optional[str] = ..., waiting: _Optional[bool] = ..., recalled: _Optional[bool] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("partition", "generation", "pending")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    partition: int
    generation: int
    pending: _pulsar_pb2.MessageIdData
    def __init__(self, partition: _Optional[int] = ..., generation: _Optional[int] = ..., pending: _Optional[_Union[_pulsar_pb2.MessageIdData, _Mapping]] = ...) -> None: ...

class CommandRelease(_message.Message):
    __slots__ = ("claim_id", "partitions", "outcome", "pending", "generations")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REFUSED: _ClassVar[CommandRelease.Outcome]
        EMPTY: _ClassVar[CommandRelease.Outcome]
        DELIVERED: _ClassVar[CommandRelease.Outcome]
    REFUSED: CommandRelease.Outcome
    EMPTY: CommandRelease.Outcome
    DELIVERED: CommandRelease.Outcome
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    claim_id: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    outcome: CommandRelease.Outcome
    pending: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.MessageIdData]
    generations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, claim_id: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., outcome: _Optional[_Union[CommandRelease.Outcome, str]] = ..., pending: _Optional[_Iterable[_Union[_pulsar_pb2.MessageIdData, _Mapping]]] = ..., generations: _Optional[_Iterable[int]] = ...) -> None: ...

class CommandRetain(_message.Message):
    __slots__ = ("claim_id", "in_use")
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    claim_id: int
    in_use: bool
    def __init__(self, claim_id: _Optional[int] = ..., in_use: _Optional[bool] = ...) -> None: ...

class CommandPoll(_message.Message):
    __slots__ = ("poll_id", "topic", "subscription", "consumer", "limit", "max_bytes", "strict", "timeout_ms", "earliest", "timestamp_ms", "empty_polls_per_minute", "max_inflated", "fetch", "record", "explicit_partitions", "acknowledged")
    POLL_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_POLLS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    MAX_INFLATED_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    poll_id: int
    topic: str
    subscription: str
    consumer: str
    limit: int
    max_bytes: int
    strict: bool
    timeout_ms: int
    earliest: bool
    timestamp_ms: int
    empty_polls_per_minute: int
    max_inflated: int
    fetch: FetchTerms
    record: RecordVersion
    explicit_partitions: int
    acknowledged: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.MessageIdData]
    def __init__(self, poll_id: _Optional[int] = ..., topic: _Optional[str] = ..., subscription: _Optional[str] = ..., consumer: _Optional[str] = ..., limit: _Optional[int] = ..., max_bytes: _Optional[int] = ..., strict: _Optional[bool] = ..., timeout_ms: _Optional[int] = ..., earliest: _Optional[bool] = ..., timestamp_ms: _Optional[int] = ..., empty_polls_per_minute: _Optional[int] = ..., max_inflated: _Optional[int] = ..., fetch: _Optional[_Union[FetchTerms, _Mapping]] = ..., record: _Optional[_Union[RecordVersion, _Mapping]] = ..., explicit_partitions: _Optional[int] = ..., acknowledged: _Optional[_Iterable[_Union[_pulsar_pb2.MessageIdData, _Mapping]]] = ...) -> None: ...

class RecordVersion(_message.Message):
    __slots__ = ("kind", "name", "version")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    version: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class FetchTerms(_message.Message):
    __slots__ = ("ack_timeout_ms", "max_unacknowledged", "live", "live_at_ms")
    ACK_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_UNACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    LIVE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ack_timeout_ms: int
    max_unacknowledged: int
    live: _containers.RepeatedScalarFieldContainer[str]
    live_at_ms: int
    def __init__(self, ack_timeout_ms: _Optional[int] = ..., max_unacknowledged: _Optional[int] = ..., live: _Optional[_Iterable[str]] = ..., live_at_ms: _Optional[int] = ...) -> None: ...

class CommandPolled(_message.Message):
    __slots__ = ("poll_id", "entries", "more", "code", "message", "retry_after_ms")
    POLL_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    poll_id: int
    entries: _containers.RepeatedCompositeFieldContainer[PolledEntry]
    more: bool
    code: str
    message: str
    retry_after_ms: int
    def __init__(self, poll_id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[PolledEntry, _Mapping]]] = ..., more: _Optional[bool] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class PolledEntry(_message.Message):
    __slots__ = ("partition", "ledger", "entry", "epoch", "size", "ack_set", "first", "batch_size", "timestamp_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ACK_SET_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    ledger: int
    entry: int
    epoch: int
    size: int
    ack_set: _containers.RepeatedScalarFieldContainer[int]
    first: int
    batch_size: int
    timestamp_ms: int
    def __init__(self, partition: _Optional[int] = ..., ledger: _Optional[int] = ..., entry: _Optional[int] = ..., epoch: _Optional[int] = ..., size: _Optional[int] = ..., ack_set: _Optional[_Iterable[int]] = ..., first: _Optional[int] = ..., batch_size: _Optional[int] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class CommandDone(_message.Message):
    __slots__ = ("poll_id", "outcome", "keep", "upto")
    POLL_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    poll_id: int
    outcome: CommandRelease.Outcome
    keep: bool
    upto: _containers.RepeatedCompositeFieldContainer[_pulsar_pb2.MessageIdData]
    def __init__(self, poll_id: _Optional[int] = ..., outcome: _Optional[_Union[CommandRelease.Outcome, str]] = ..., keep: _Optional[bool] = ..., upto: _Optional[_Iterable[_Union[_pulsar_pb2.MessageIdData, _Mapping]]] = ...) -> None: ...

class NatsMessage(_message.Message):
    __slots__ = ("subject", "reply", "headers", "payload")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    subject: str
    reply: str
    headers: bytes
    payload: bytes
    def __init__(self, subject: _Optional[str] = ..., reply: _Optional[str] = ..., headers: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class NatsRequest(_message.Message):
    __slots__ = ("message", "max_replies", "timeout_ms", "principal", "key", "admin", "administers")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MAX_REPLIES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    ADMINISTERS_FIELD_NUMBER: _ClassVar[int]
    message: NatsMessage
    max_replies: int
    timeout_ms: int
    principal: str
    key: bool
    admin: bool
    administers: bool
    def __init__(self, message: _Optional[_Union[NatsMessage, _Mapping]] = ..., max_replies: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., principal: _Optional[str] = ..., key: _Optional[bool] = ..., admin: _Optional[bool] = ..., administers: _Optional[bool] = ...) -> None: ...

class NatsAcknowledge(_message.Message):
    __slots__ = ("subjects", "payload", "principal", "key", "admin")
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    subjects: _containers.RepeatedScalarFieldContainer[str]
    payload: bytes
    principal: str
    key: bool
    admin: bool
    def __init__(self, subjects: _Optional[_Iterable[str]] = ..., payload: _Optional[bytes] = ..., principal: _Optional[str] = ..., key: _Optional[bool] = ..., admin: _Optional[bool] = ...) -> None: ...
