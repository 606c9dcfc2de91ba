import com.att.nsa.configs.ConfigDb;
import com.att.nsa.configs.confimpl.EncryptingLayer;
import com.att.nsa.configs.confimpl.MemConfigDb;
import com.att.nsa.limits.Blacklist;
import java.io.ByteArrayOutputStream;
import java.io.ObjectOutputStream;
import java.util.Base64;
import org.json.JSONArray;
import org.json.JSONObject;

/**
 * Prints a tree as the original writes it, with the original's own classes for encryption and
 * blacklist (com.att.nsa:saToolkit:1.2.0-oss, org.json:json:20131018) and the JVM's serialisation:
 * lines of "path hex". The first line says which JVM it was.
 *
 *   java -cp "$(python -c 'from tests.servers.maven import classpath; print(classpath("cambria"))')" \
 *       tests/unit/migration/golden/Original.java | gzip -9n > tests/unit/migration/golden/original.txt.gz
 */
public class Original {
    static final String KEY = "AAECAwQFBgcICQoLDA0ODw==";
    static final String IV = "Dw4NDAsKCQgHBgUEAwIBAA==";

    public static void main(String[] arguments) throws Exception {
        System.out.println("# " + System.getProperty("java.runtime.version"));
        ConfigDb plain = new MemConfigDb();
        ConfigDb locked = new EncryptingLayer(
            plain, "AES/CBC/PKCS5Padding", EncryptingLayer.readSecretKey(KEY), Base64.getDecoder().decode(IV));
        locked.store(locked.parse("/apikeys"), "");
        for (String name : new String[] {"K1abcdefghijklmn", "K2abcdefghijklmn"}) {
            JSONObject key = new JSONObject().put("key", name).put("secret", "secret of " + name);
            key.put("aux", new JSONObject().put("email", "anna@example.org").put("description", "Schlüssel € \uD83D\uDE80\u0000"));
            locked.store(locked.parse("/apikeys/" + name), key.toString());
        }
        JSONObject off = new JSONObject().put("key", "K3abcdefghijklmn").put("secret", "s").put("enabled", false);
        locked.store(locked.parse("/apikeys/K3abcdefghijklmn"), off.toString());
        // A topic as it is created, and one after its access lists were changed.
        JSONObject made = new JSONObject().put("owner", "K1abcdefghijklmn").put("description", "orders").put("txenabled", true);
        plain.store(plain.parse("/topics/org.onap.orders"), made.toString());
        JSONObject listed = new JSONObject().put("owner", "K1abcdefghijklmn");
        listed.put("readers", new JSONObject().put("active", true).put("allowed", new JSONArray().put("K2abcdefghijklmn")));
        listed.put("writers", new JSONObject().put("active", true).put("allowed", new JSONArray()));
        plain.store(plain.parse("/topics/listed"), listed.toString());
        Blacklist blacklist = new Blacklist(plain, plain.parse("/ipBlacklist"));
        blacklist.add("192.0.2.7");
        blacklist.add("2001:DB8::7");
        blacklist.add("no address");
        for (String path : new String[] {
                "/apikeys", "/apikeys/K1abcdefghijklmn", "/apikeys/K2abcdefghijklmn", "/apikeys/K3abcdefghijklmn",
                "/topics/org.onap.orders", "/topics/listed", "/ipBlacklist"}) {
            print(path, plain.load(plain.parse(path)));
        }
        print("/strings/null", null);
        print("/strings/all", "\u0000\u0001\u007f\u0080\u07ff\u0800\ud7ff\ue000\uffff\uD83D\uDE80");
        print("/strings/lone", "\uD83D");
        print("/strings/65535", "x".repeat(65535));
        print("/strings/65536", "x".repeat(65536));
        print("/strings/number", Integer.valueOf(7));
    }

    static void print(String path, Object value) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream stream = new ObjectOutputStream(bytes)) {
            stream.writeObject(value);
        }
        StringBuilder hex = new StringBuilder();
        for (byte one : bytes.toByteArray()) {
            hex.append(String.format("%02x", one));
        }
        System.out.println(path + " " + hex);
    }
}
