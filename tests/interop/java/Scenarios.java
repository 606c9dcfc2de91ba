// What users of the official Java client do, each scenario one public method of a
// group, which returns what was seen.
// Usage: Scenarios URL NAMESPACE [NAME]. Each line of the output is one scenario's outcome as JSON; a line
// that begins with "!" asks whoever started this for something that administrators do, and waits
// for a line on the standard input.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.api.PulsarClient;

public final class Scenarios extends Tools {
    static final int SECONDS = 40;
    static final List<Class<?>> GROUPS =
        List.of(Publishing.class, Acknowledging.class, Sharing.class, Reading.class, Schemas.class,
            Transactions.class);

    public static void main(String[] arguments) throws Exception {
        url = arguments[0];
        namespace = arguments[1];
        orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        client = PulsarClient.builder().serviceUrl(url).operationTimeout(10, TimeUnit.SECONDS).build();
        ExecutorService pool = Executors.newFixedThreadPool(4, Scenarios::daemon);
        Map<String, Future<Object>> running = new TreeMap<>();
        for (Class<?> group : GROUPS) {
            for (Method method : group.getDeclaredMethods()) {
                boolean wanted = arguments.length < 3 || arguments[2].equals(method.getName());
                if (wanted && Modifier.isPublic(method.getModifiers())) {
                    running.put(method.getName(), pool.submit(() -> method.invoke(null)));
                }
            }
        }
        for (Map.Entry<String, Future<Object>> one : running.entrySet()) {
            say(json(List.of(one.getKey(), seen(one.getValue()))));
        }
        Runtime.getRuntime().halt(0);
    }

    static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    }

    static Object seen(Future<Object> running) throws InterruptedException {
        try {
            return running.get(SECONDS, TimeUnit.SECONDS);
        } catch (TimeoutException late) {
            return "did not end";
        } catch (ExecutionException failure) {
            Throwable cause = failure.getCause().getCause();
            return "ended by " + (cause == null ? failure.getCause() : cause).getClass().getSimpleName();
        }
    }
}
