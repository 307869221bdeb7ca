/* A fake libnvrtc: -DVERSION=13000. It "compiles" every source to what the fake driver loads, but one with the word `wrong` in it, and
   knows the options that tests/fake_nvrtc.rs gives. */
#define FAKE_CALLS fake_nvrtc_calls
#include "fake.h"
#include <stdio.h>
#include <stdlib.h>

struct program {
    char *source, log[256];
    int elements; /* an element-wise function */
};

static const char image[] = "ptx";

const char *nvrtcGetErrorString(int code) { return code == 6 ? "NVRTC_ERROR_COMPILATION" : "some other error"; }
int nvrtcVersion(int *major, int *minor) { GIVE(1, (*major = VERSION / 1000, *minor = VERSION % 1000 / 10)); }
int nvrtcGetNumSupportedArchs(int *count) { GIVE(1, *count = 2); }
int nvrtcGetSupportedArchs(int *archs) { GIVE(1, (archs[0] = 75, archs[1] = 90)); }
int nvrtcCreateProgram(struct program **program, const char *source, const char *name, int headers, const char *const *a, const char *const *b) {
    note(__func__);
    int elements = !strcmp(name, "axpy") && strstr(source, "\n#line 1 \"axpy\"\n") && strstr(source, "TCUDA_KERNEL(tcuda_arguments) {");
    if ((!elements && (strcmp(name, "some.cu") || strncmp(source, "#line 1 \"some.cu\"\n", 18))) || headers || a || b) return 4;
    *program = calloc(1, sizeof **program);
    (*program)->elements = elements;
    (*program)->source = strdup(source);
    return 0;
}
int nvrtcDestroyProgram(struct program **program) {
    note(__func__);
    free((*program)->source);
    free(*program);
    *program = 0;
    return 0;
}
int nvrtcAddNameExpression(struct program *program, const char *name) { CHECK(program && !strcmp(name, "scale<int>")); }
int nvrtcCompileProgram(struct program *program, int count, const char *const *options) {
    note(__func__);
    if (getenv("FAKE_BUILTINS")) return 7;
    if (strstr(program->source, "wrong")) {
        sprintf(program->log, "some.cu(2): error: it is wrong\n");
        return 6;
    }
    if (count == 3 && !strcmp(options[0], "--std=c++17") && !strcmp(options[1], program->elements ? "-default-device" : "-DN=4") && !strcmp(options[2], "--gpu-architecture=sm_90")) return 0;
    sprintf(program->log, "unrecognized option %s", count > 1 ? options[1] : "");
    return 5;
}
int nvrtcGetProgramLogSize(struct program *program, size_t *size) { GIVE(1, *size = strlen(program->log) + 1); }
int nvrtcGetProgramLog(struct program *program, char *log) { GIVE(1, strcpy(log, program->log)); }
int nvrtcGetLoweredName(struct program *program, const char *name, const char **lowered) {
    GIVE(program && !strcmp(name, "scale<int>"), *lowered = "kernel");
}
int nvrtcGetCUBINSize(struct program *program, size_t *size) { GIVE(program, *size = sizeof image); }
int nvrtcGetCUBIN(struct program *program, char *code) { GIVE(program, memcpy(code, image, sizeof image)); }
int nvrtcGetPTXSize(struct program *program, size_t *size) { GIVE(program, *size = sizeof image); }
int nvrtcGetPTX(struct program *program, char *code) { GIVE(program, memcpy(code, image, sizeof image)); }
