// Schemas: what they carry, and which go together.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.schema.SchemaDefinition;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

final class Schemas extends Tools {
    public static final class Point {
        public int x;
        public int y;
    }

    public static final class Names {
        public String first;
        public String last;
    }

    public static Object recordsOfAvroAndJson() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (Schema<Point> schema : List.of(Schema.AVRO(Point.class), Schema.JSON(Point.class))) {
            String topic = topic();
            try (Consumer<Point> consumer = client.newConsumer(schema).topic(topic)
                        .subscriptionName("s").subscribe();
                    Consumer<GenericRecord> any = client.newConsumer(Schema.AUTO_CONSUME()).topic(topic)
                        .subscriptionName("any").subscribe();
                    Producer<Point> producer = client.newProducer(schema).topic(topic).create()) {
                Point sent = new Point();
                sent.x = 1;
                sent.y = -2;
                producer.send(sent);
                Point got = consumer.receive(SOON, TimeUnit.MILLISECONDS).getValue();
                GenericRecord read = any.receive(SOON, TimeUnit.MILLISECONDS).getValue();
                found.put(schema.getSchemaInfo().getType().name(), List.of(got.x, got.y,
                    read.getSchemaType().name(), "" + read.getField("y"), read.getFields().size(),
                    raised(() -> client.newProducer(Schema.AVRO(Names.class)).topic(topic).create()),
                    raised(() -> client.newProducer(Schema.STRING).topic(topic).create())));
            }
        }
        return found;
    }

    public static Object wordsOfTheTopicsSchema() throws Exception {
        String topic = topic();
        try (Producer<Point> first = client.newProducer(Schema.JSON(Point.class)).topic(topic).create();
                Producer<byte[]> any = client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create();
                Consumer<Point> consumer = client.newConsumer(Schema.JSON(Point.class)).topic(topic)
                    .subscriptionName("s").subscribe()) {
            any.send("{\"x\":3,\"y\":4}".getBytes());
            String wrong = raised(() -> any.send("not json".getBytes()));
            Point got = consumer.receive(SOON, TimeUnit.MILLISECONDS).getValue();
            return List.of(got.x, got.y, wrong);
        }
    }

    public static Object recordsThatGrow() throws Exception {
        String topic = topic();
        String old = "{\"type\":\"record\",\"name\":\"R\",\"fields\":[{\"name\":\"a\",\"type\":\"int\"}]}";
        String grown = old.replace("]}", ",{\"name\":\"b\",\"type\":\"int\",\"default\":7}]}");
        String other = old.replace("\"int\"", "\"string\"");
        List<Object> found = new ArrayList<>();
        for (String definition : List.of(old, grown, other, old)) {
            Schema<?> schema = Schema.AVRO(SchemaDefinition.builder().withJsonDef(definition).build());
            found.add(raised(() -> client.newProducer(schema).topic(topic).create().close()));
        }
        return found;
    }

    public static Object keysAndValues() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
            String topic = topic();
            Schema<KeyValue<String, Integer>> schema =
                Schema.KeyValue(Schema.STRING, Schema.INT32, encoding);
            try (Consumer<KeyValue<String, Integer>> consumer = client.newConsumer(schema).topic(topic)
                        .subscriptionName("s").subscribe();
                    Producer<KeyValue<String, Integer>> producer =
                        client.newProducer(schema).topic(topic).create()) {
                producer.send(new KeyValue<>("k", 7));
                Message<KeyValue<String, Integer>> got = consumer.receive(SOON, TimeUnit.MILLISECONDS);
                found.put(encoding.name(),
                    List.of(got.getValue().getKey(), got.getValue().getValue(), got.hasKey()));
            }
        }
        return found;
    }

    public static Object simpleKinds() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        Map<Schema<?>, Object> kinds = Map.of(Schema.BOOL, true, Schema.INT8, (byte) -1, Schema.INT16,
            (short) 300, Schema.INT64, 1L << 40, Schema.FLOAT, 1.5f, Schema.DOUBLE, -2.25,
            Schema.STRING, "größe", Schema.LOCAL_DATE, java.time.LocalDate.of(2020, 2, 29));
        for (Map.Entry<Schema<?>, Object> kind : kinds.entrySet()) {
            found.put(kind.getKey().getSchemaInfo().getName(), backAgain(kind.getKey(), kind.getValue()));
        }
        return found;
    }

    @SuppressWarnings("unchecked")
    static <T> Object backAgain(Schema<T> schema, Object value) throws Exception {
        String topic = topic();
        try (Consumer<T> consumer = client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
                Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
            producer.send((T) value);
            return "" + consumer.receive(SOON, TimeUnit.MILLISECONDS).getValue();
        }
    }
}
