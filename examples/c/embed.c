/* Write the vector of every line of token ids on stdin: embed model.onnx < ids > vectors
 *
 * gcc -O2 -I HEADERS embed.c LIBRARY -Wl,-rpath,FOLDER -o embed */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "onnxruntime_c_api.h"

enum { MOST_TOKENS = 8192 };
static const OrtApi *api;

static void stop(const char *what, const char *why) {
    fprintf(stderr, "embed: %s: %s\n", what, why);
    exit(1);
}

static void check(OrtStatus *status) {
    if (status != NULL) stop("onnxruntime", api->GetErrorMessage(status));
}

/* Read the ids of one line, and return their number. */
static size_t read_ids(char *line, int64_t *ids) {
    size_t count = 0;
    for (char *word = strtok(line, " \t\r\n"); word != NULL; word = strtok(NULL, " \t\r\n")) {
        char *end;
        errno = 0;
        if (count == MOST_TOKENS) stop("stdin", "a line has more than 8192 token ids");
        ids[count++] = strtoll(word, &end, 10);
        if (*end != '\0' || errno != 0) stop(word, "not a token id; wanted whole numbers with blanks between them");
    }
    if (count == 0) stop("stdin", "a line without token ids; an empty text has those of [CLS] and [SEP]");
    return count;
}

int main(int argc, char **argv) {
    static int64_t ids[MOST_TOKENS], mask[MOST_TOKENS];
    static char line[1 << 17];
    const char *inputs[] = {"input_ids", "attention_mask"}, *outputs[] = {"sentence_embedding"};
    if (argc != 2) stop("usage", "embed model.onnx < ids > vectors");
    setenv("ORT_DISABLE_TELEMETRY", "1", 1);
    for (size_t i = 0; i < MOST_TOKENS; i++) mask[i] = 1; /* one text a run, so there is no padding */
    api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (api == NULL) stop("onnxruntime", "the library is older than the header");
    OrtEnv *environment;
    OrtSessionOptions *options;
    OrtSession *session;
    OrtMemoryInfo *memory;
    check(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "embed", &environment));
    check(api->CreateSessionOptions(&options)); /* the default ones: all optimisations */
    check(api->CreateSession(environment, argv[1], options, &session));
    check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strchr(line, '\n') == NULL && !feof(stdin)) stop("stdin", "a line is longer than 131071 bytes");
        size_t count = read_ids(line, ids), size;
        int64_t shape[] = {1, (int64_t)count};
        OrtValue *given[2], *vector = NULL;
        OrtTensorTypeAndShapeInfo *info;
        float *numbers;
        for (int i = 0; i < 2; i++)
            check(api->CreateTensorWithDataAsOrtValue(memory, i ? mask : ids, count * sizeof *ids, shape, 2,
                                                      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, &given[i]));
        check(api->Run(session, NULL, inputs, (const OrtValue *const *)given, 2, outputs, 1, &vector));
        check(api->GetTensorTypeAndShape(vector, &info));
        check(api->GetTensorShapeElementCount(info, &size));
        check(api->GetTensorMutableData(vector, (void **)&numbers));
        for (size_t i = 0; i < size; i++) printf("%.9g%c", numbers[i], i + 1 < size ? ' ' : '\n');
        api->ReleaseTensorTypeAndShapeInfo(info);
        for (int i = 0; i < 2; i++) api->ReleaseValue(given[i]);
        api->ReleaseValue(vector);
    }
    return 0;
}
