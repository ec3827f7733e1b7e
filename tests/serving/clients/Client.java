import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.concurrent.CompletableFuture;

/** Posts a file several times to URL with Java's own client, which offers h2c, and prints an answer a line: URL FILE. */
class Client {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        Path file = Path.of(arguments[1]);
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(arguments[0]))
            .header("content-type", "application/json");
        HttpRequest sized = request.copy().POST(BodyPublishers.ofFile(file)).build();
        HttpRequest chunked = request.copy().POST(BodyPublishers.ofInputStream(() -> {
            try {
                return new java.io.FileInputStream(file.toFile());
            } catch (java.io.IOException error) {
                throw new RuntimeException(error);
            }
        })).build();
        HttpRequest patient = request.copy().expectContinue(true).POST(BodyPublishers.ofFile(file)).build();
        for (HttpRequest one : new HttpRequest[] {sized, sized, chunked, patient}) {
            System.out.println(client.send(one, BodyHandlers.ofString()).body());
        }
        var answers = new ArrayList<CompletableFuture<String>>();
        for (int number = 0; number < 8; number++) {
            answers.add(client.sendAsync(number % 2 == 0 ? sized : chunked, BodyHandlers.ofString())
                .thenApply(answer -> answer.body()));
        }
        for (CompletableFuture<String> answer : answers) {
            System.out.println(answer.join());
        }
    }
}
