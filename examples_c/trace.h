/* Reads a recorded trace of allocations (examples_c/data, made by tools/pack_trace.py, which describes the format).
 *
 *     struct trace trace;
 *     struct trace_event event;
 *     if (!trace_open(&trace, "examples_c/data/gpt_varlen.trace"))
 *         return fail(trace.error);
 *     while (trace_next(&trace, &event))
 *         ...
 *     if (trace.error)
 *         ...
 *     trace_close(&trace);
 *
 * Valid as C99 and as C++. */

#ifndef TCUDA_TRACE_H
#define TCUDA_TRACE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trace_event {
    uint32_t block; /* which block: allocations are counted from 0 */
    int free;       /* 0 allocates the block, 1 frees it */
    uint32_t stream;
    uint64_t size; /* bytes, as they were asked for; of a free too */
};

struct trace {
    uint64_t events;   /* how many there are in all */
    uint64_t read;     /* how many were read */
    uint32_t streams;  /* streams are 0 to streams - 1 */
    uint32_t blocks;   /* how many were allocated so far */
    uint32_t live;     /* how many of them are not freed */
    const char *error; /* NULL, or what is wrong with the file */

    unsigned char *data;
    size_t length, at;
    uint64_t *sizes;
    uint64_t size_count;
    struct trace_event *stack; /* the live blocks, the youngest last */
    uint32_t stack_room, stream;
};

static inline int trace_fail(struct trace *trace, const char *error)
{
    trace->error = error;
    return 0;
}

static inline uint64_t trace_number(struct trace *trace)
{
    uint64_t value = 0;
    unsigned shift = 0;

    while (trace->at < trace->length && shift < 64) {
        unsigned char byte = trace->data[trace->at++];
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return value;
        shift += 7;
    }
    trace->error = "the trace ends in the middle";
    return 0;
}

static inline void trace_close(struct trace *trace)
{
    free(trace->data);
    free(trace->sizes);
    free(trace->stack);
    memset(trace, 0, sizeof *trace);
}

static inline int trace_load(struct trace *trace, const char *path)
{
    FILE *file = fopen(path, "rb");
    long length = -1;

    if (file == NULL)
        return trace_fail(trace, "the trace cannot be opened");
    if (fseek(file, 0, SEEK_END) == 0)
        length = ftell(file);
    if (length >= 0 && fseek(file, 0, SEEK_SET) == 0) {
        trace->data = (unsigned char *)malloc((size_t)length + 1);
        if (trace->data != NULL)
            trace->length = fread(trace->data, 1, (size_t)length, file);
    }
    fclose(file);
    return length >= 0 && trace->length == (size_t)length ? 1 : trace_fail(trace, "the trace cannot be read");
}

/* 0 after an error, which trace->error names; trace_close must be called either way. */
static inline int trace_open(struct trace *trace, const char *path)
{
    uint64_t i;

    memset(trace, 0, sizeof *trace);
    if (!trace_load(trace, path))
        return 0;
    if (trace->length < 8 || memcmp(trace->data, "tcudatr1", 8) != 0)
        return trace_fail(trace, "this file is no packed trace");
    trace->at = 8;
    trace->events = trace_number(trace);
    trace->streams = (uint32_t)trace_number(trace);
    trace->size_count = trace_number(trace);
    if (trace->error != NULL || trace->size_count > trace->length)
        return trace_fail(trace, "the head of the trace is broken");
    trace->sizes = (uint64_t *)malloc((size_t)trace->size_count * sizeof *trace->sizes + 1);
    if (trace->sizes == NULL)
        return trace_fail(trace, "no memory");
    for (i = 0; i < trace->size_count; i++)
        trace->sizes[i] = trace_number(trace);
    return trace->error == NULL;
}

static inline int trace_push(struct trace *trace, const struct trace_event *event)
{
    if (trace->live == trace->stack_room) {
        uint32_t room = trace->stack_room != 0 ? 2 * trace->stack_room : 1024;
        struct trace_event *stack = (struct trace_event *)realloc(trace->stack, room * sizeof *stack);
        if (stack == NULL)
            return trace_fail(trace, "no memory");
        trace->stack = stack;
        trace->stack_room = room;
    }
    trace->stack[trace->live++] = *event;
    return 1;
}

/* 0 at the end and after an error; trace->error tells which. */
static inline int trace_next(struct trace *trace, struct trace_event *event)
{
    uint64_t token, index;

    if (trace->error != NULL || trace->read == trace->events)
        return 0;
    while ((token = trace_number(trace)) == 1)
        trace->stream = (uint32_t)trace_number(trace);
    if (trace->error != NULL)
        return 0;
    if (token % 2 != 0) {
        index = (token - 3) / 2;
        if (index >= trace->size_count || trace->stream >= trace->streams)
            return trace_fail(trace, "the trace names a size or stream that it does not have");
        event->block = trace->blocks++;
        event->free = 0;
        event->stream = trace->stream;
        event->size = trace->sizes[index];
        if (!trace_push(trace, event))
            return 0;
    } else {
        if (token / 2 >= trace->live)
            return trace_fail(trace, "the trace frees a block that it does not have");
        index = trace->live - 1 - token / 2;
        *event = trace->stack[index];
        event->free = 1;
        trace->live--;
        memmove(trace->stack + index, trace->stack + index + 1, (size_t)(trace->live - index) * sizeof *event);
    }
    trace->read++;
    return 1;
}

#endif
