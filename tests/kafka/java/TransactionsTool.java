// Runs Kafka's own tool for transactions, kafka-transactions.sh, once for each line of arguments that it reads.
// Prints what the tool prints, each line behind "| ", and then "exit" with the tool's status.

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.tools.TransactionsCommand;

public final class TransactionsTool {
    static final class Ended extends RuntimeException {
        final int status;

        Ended(int status) {
            this.status = status;
        }
    }

    public static void main(String[] args) throws Exception {
        Exit.Procedure end = (status, reason) -> {
            throw new Ended(status);
        };
        Exit.setExitProcedure(end);
        PrintStream shown = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(printed, true);
            System.setOut(out);
            System.setErr(out);
            int status = 0;
            try {
                TransactionsCommand.main(line.split(" "));
            } catch (Ended ended) {
                status = ended.status;
            } catch (Throwable failure) {
                status = 1;
                Throwable cause = failure.getCause() == null ? failure : failure.getCause();
                out.println(cause.getClass().getSimpleName() + ": " + cause.getMessage());
            }
            printed.toString().lines().forEach(one -> shown.println("| " + one));
            shown.println("exit " + status);
            shown.flush();
        }
        System.exit(0);
    }
}
