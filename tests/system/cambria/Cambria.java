import com.att.nsa.apiClient.credentials.ApiCredential;
import com.att.nsa.apiClient.http.HttpClient.ConnectionType;
import com.att.nsa.apiClient.http.HttpException;
import com.att.nsa.apiClient.http.HttpObjectNotFoundException;
import com.att.nsa.cambria.client.CambriaBatchingPublisher;
import com.att.nsa.cambria.client.CambriaClientBuilders;
import com.att.nsa.cambria.client.CambriaConsumer;
import com.att.nsa.cambria.client.CambriaIdentityManager;
import com.att.nsa.cambria.client.CambriaPublisher;
import com.att.nsa.cambria.client.CambriaTopicManager;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.json.JSONArray;
import org.json.JSONObject;

/**
 * Obeys orders with the legacy client: one JSON object a line comes in, one JSON object a line goes out.
 *
 * The arguments say how to connect: host=H:P, https=true. An order names a step and what it needs; "key" and
 * "secret", or "user" and "password", say who gives it. The answer has the step's results, or "error", the name
 * of the exception, with "status" where there is one.
 */
public final class Cambria {
    private final String host;
    private final boolean https;
    private final Map<String, CambriaConsumer> consumers = new HashMap<>();

    private Cambria(Map<String, String> options) {
        host = options.get("host");
        https = Boolean.parseBoolean(options.get("https"));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String argument : arguments) {
            options.put(argument.split("=", 2)[0], argument.split("=", 2)[1]);
        }
        Cambria client = new Cambria(options);
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(client.answer(new JSONObject(line)));
        }
        // the client's own threads would keep the process alive
        System.exit(0);
    }

    private JSONObject answer(JSONObject order) {
        JSONObject answer = new JSONObject();
        try {
            String step = order.getString("step");
            if (step.equals("publish")) {
                publish(order, answer);
            } else if (step.equals("consume")) {
                consume(order, answer);
            } else if (step.endsWith("Key")) {
                identity(step, order, answer);
            } else {
                topics(step, order, answer);
            }
        } catch (Exception error) {
            answer.put("error", error.getClass().getSimpleName());
            // some of the client's methods wrap what went wrong in an IOException
            Throwable cause = error.getCause() instanceof HttpException ? error.getCause() : error;
            if (cause instanceof HttpObjectNotFoundException) {
                answer.put("status", 404);
            } else if (cause instanceof HttpException) {
                answer.put("status", ((HttpException) cause).getStatusCode());
            } else {
                answer.put("message", error.toString());
            }
        }
        return answer;
    }

    private ConnectionType type() {
        return https ? ConnectionType.HTTPS : ConnectionType.HTTP;
    }

    private void publish(JSONObject order, JSONObject answer) throws Exception {
        CambriaClientBuilders.PublisherBuilder builder = new CambriaClientBuilders.PublisherBuilder()
            .usingHosts(host)
            .onTopic(order.getString("topic"))
            .withConnectionType(type())
            .limitBatch(order.optInt("batch", 100), 50)
            .enableCompresion(order.optBoolean("compressed"));
        if (order.has("key")) {
            builder.authenticatedBy(order.getString("key"), order.getString("secret"));
        }
        if (order.has("user")) {
            builder.authenticatedByHttp(order.getString("user"), order.getString("password"));
        }
        CambriaBatchingPublisher publisher = builder.build();
        JSONArray messages = order.getJSONArray("messages");
        for (int i = 0; i < messages.length(); i++) {
            JSONArray pair = messages.getJSONArray(i);
            publisher.send(pair.getString(0), pair.getString(1));
        }
        List<CambriaPublisher.message> unsent = publisher.close(order.optInt("wait", 20_000), TimeUnit.MILLISECONDS);
        answer.put("unsent", unsent.size());
    }

    private void consume(JSONObject order, JSONObject answer) throws Exception {
        String name = order.getString("topic") + " " + order.getString("group") + " " + order.getString("id")
            + " " + order.optString("key") + " " + order.optString("user");
        CambriaConsumer consumer = consumers.get(name);
        if (consumer == null) {
            consumer = consumer(order);
            consumers.put(name, consumer);
        }
        List<String> found = new ArrayList<>();
        for (String message : consumer.fetch(order.getInt("timeout"), order.getInt("limit"))) {
            found.add(message);
        }
        answer.put("messages", new JSONArray(found));
    }

    private CambriaConsumer consumer(JSONObject order) throws Exception {
        CambriaClientBuilders.ConsumerBuilder builder = new CambriaClientBuilders.ConsumerBuilder()
            .usingHosts(host)
            .withConnectionType(type())
            .onTopic(order.getString("topic"))
            .knownAs(order.getString("group"), order.getString("id"));
        if (order.has("filter")) {
            builder.withServerSideFilter(order.getString("filter"));
        }
        if (order.has("key")) {
            builder.authenticatedBy(order.getString("key"), order.getString("secret"));
        }
        if (order.has("user")) {
            builder.authenticatedByHttp(order.getString("user"), order.getString("password"));
        }
        return builder.build();
    }

    private <T extends com.att.nsa.cambria.client.CambriaClient> T manager(
            CambriaClientBuilders.AbstractAuthenticatedManagerBuilder<T> builder, JSONObject order) throws Exception {
        builder.usingHosts(host);
        if (https) {
            builder.usingHttps();
        }
        if (order.has("key")) {
            builder.authenticatedBy(order.getString("key"), order.getString("secret"));
        }
        if (order.has("user")) {
            builder.authenticatedByHttp(order.getString("user"), order.getString("password"));
        }
        return builder.build();
    }

    private void identity(String step, JSONObject order, JSONObject answer) throws Exception {
        CambriaIdentityManager keys = manager(new CambriaClientBuilders.IdentityManagerBuilder(), order);
        switch (step) {
            case "createKey": {
                ApiCredential made = keys.createApiKey(order.getString("email"), order.getString("description"));
                answer.put("key", made.getApiKey()).put("secret", made.getApiSecret());
                break;
            }
            case "getKey": {
                CambriaIdentityManager.ApiKey found = keys.getApiKey(order.getString("name"));
                answer.put("email", found.getEmail()).put("description", found.getDescription());
                break;
            }
            case "updateKey":
                keys.updateCurrentApiKey(order.getString("email"), order.getString("description"));
                break;
            case "deleteKey":
                keys.deleteCurrentApiKey();
                break;
            default:
                throw new IllegalArgumentException(step);
        }
    }

    private void topics(String step, JSONObject order, JSONObject answer) throws Exception {
        CambriaTopicManager topics = manager(new CambriaClientBuilders.TopicManagerBuilder(), order);
        String topic = order.optString("topic");
        switch (step) {
            case "create":
                topics.createTopic(topic, order.getString("description"), order.optInt("partitions", 1), 1);
                break;
            case "list":
                answer.put("topics", new JSONArray(topics.getTopics()));
                break;
            case "describe": {
                CambriaTopicManager.TopicInfo info = topics.getTopicMetadata(topic);
                answer.put("owner", info.getOwner()).put("description", info.getDescription());
                answer.put("producers", users(info.getAllowedProducers()));
                answer.put("consumers", users(info.getAllowedConsumers()));
                answer.put("openForProducing", topics.isOpenForProducing(topic));
                answer.put("openForConsuming", topics.isOpenForConsuming(topic));
                break;
            }
            case "allowProducer":
                topics.allowProducer(topic, order.getString("other"));
                break;
            case "revokeProducer":
                topics.revokeProducer(topic, order.getString("other"));
                break;
            case "allowConsumer":
                topics.allowConsumer(topic, order.getString("other"));
                break;
            case "revokeConsumer":
                topics.revokeConsumer(topic, order.getString("other"));
                break;
            case "delete":
                topics.deleteTopic(topic);
                break;
            default:
                throw new IllegalArgumentException(step);
        }
    }

    private static Object users(Collection<String> names) {
        return names == null ? JSONObject.NULL : new JSONArray(names);
    }
}
