/* Batches by volume: the work in a batch stays within a limit, however many requests that is.
 *
 * Triton's max_batch_size counts items, the first dimension of the inputs. Items differ: one may have ten tokens and
 * the next a thousand, and a batch takes as long, or as much memory, as the tokens in it. With this library, Triton's
 * dynamic batcher asks here before it lets a request into a batch, and here the tokens are counted: the sum of each
 * request's input `work`, up to the model's parameter `max_volume`.
 *
 *     parameters { key: "max_volume"  value { string_value: "12" } }
 *
 * A model without that parameter has no limit.
 *
 * One thing Triton does not tell. A batch that is formed and waits for the model may still grow, and for that Triton
 * begins a new count here, so that the whole may exceed the limit. A batch of a preferred size does not grow as long as
 * there is no queue delay. So where the limit must hold, make every size a preferred one:
 *
 *     dynamic_batching { preferred_batch_size: [ 1, 2, 3, 4, 5, 6, 7, 8 ] }
 *
 * Build it, and tell Triton where it is:
 *
 *     cc -shared -fPIC -o batchstrategy.so volume.c
 */
#include <stdlib.h>
#include <string.h>

#include "triton.h"

#define INPUT "work"
#define PARAMETER "\"max_volume\""
#define NO_LIMIT INT64_MAX

/* A batch that is being formed. */
typedef struct {
  int64_t max_volume;
  int64_t volume;
  int64_t num_requests;
} Batch;

static TRITONSERVER_Error* invalid(const char* message)
{
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, message);
}

/* The limit ------------------------------------------------------------------------------------------------------ */

/* Read the limit from text such as {"parameters":{"max_volume":{"string_value":"12"}}}. */
static TRITONSERVER_Error* read_limit(const char* json, int64_t* limit)
{
  *limit = NO_LIMIT;
  const char* key = strstr(json, PARAMETER);
  if (key == NULL) return NULL;
  const char* value = strchr(key + strlen(PARAMETER), ':');  /* of the key: an object with one text in it */
  value = value == NULL ? NULL : strchr(value + 1, ':');
  value = value == NULL ? NULL : strchr(value, '"');
  if (value == NULL) return invalid("max_volume has no string_value: give it a whole number in quotes");
  char* end;
  *limit = strtoll(value + 1, &end, 10);
  return *end == '"' && *limit > 0 ? NULL : invalid("max_volume must be a whole number of at least 1");
}

/* The model is loaded: keep its limit for all its batches. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model)
{
  TRITONSERVER_Message* config;
  TRITONSERVER_Error* error = TRITONBACKEND_ModelConfig(model, 1, &config);
  if (error != NULL) return error;
  const char* json;
  size_t size;
  error = TRITONSERVER_MessageSerializeToJson(config, &json, &size);
  char* text = error == NULL ? strndup(json, size) : NULL;
  TRITONSERVER_MessageDelete(config);
  if (error != NULL) return error;
  int64_t* limit = malloc(sizeof *limit);
  error = text != NULL && limit != NULL ? read_limit(text, limit)
                                        : TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "out of memory");
  free(text);
  if (error != NULL) {
    free(limit);
    return error;
  }
  *batcher = (TRITONBACKEND_Batcher*)limit;
  return NULL;
}

/* The model is unloaded. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher)
{
  free(batcher);
  return NULL;
}

/* A batch -------------------------------------------------------------------------------------------------------- */

/* A batch is begun: it is empty. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** userp)
{
  Batch* batch = malloc(sizeof *batch);
  if (batch == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "out of memory");
  *batch = (Batch){.max_volume = *(const int64_t*)batcher};
  *userp = batch;
  return NULL;
}

/* Volume of a request: the sum of its `work`, an INT32 for each of its items. */
static TRITONSERVER_Error* read_volume(TRITONBACKEND_Request* request, int64_t* volume)
{
  TRITONBACKEND_Input* input;
  uint32_t num_buffers;
  *volume = 0;
  TRITONSERVER_Error* error = TRITONBACKEND_RequestInput(request, INPUT, &input);
  if (error == NULL) error = TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, NULL, &num_buffers);
  for (uint32_t index = 0; error == NULL && index < num_buffers; index++) {
    const void* buffer;
    uint64_t size;
    int memory_type = 0;
    int64_t memory_type_id = 0;
    error = TRITONBACKEND_InputBuffer(input, index, &buffer, &size, &memory_type, &memory_type_id);
    if (error == NULL && memory_type == TRITONSERVER_MEMORY_GPU) error = invalid(INPUT " is in GPU memory");
    for (uint64_t at = 0; error == NULL && at + sizeof(int32_t) <= size; at += sizeof(int32_t)) {
      int32_t item;
      memcpy(&item, (const char*)buffer + at, sizeof item);  /* the buffer need not begin at a multiple of four */
      *volume += item;
    }
  }
  return error;
}

/* May this request join? One that is larger than the limit has a batch of its own: somebody must serve it. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request* request, void* userp,
                                                           bool* should_include)
{
  Batch* batch = userp;
  *should_include = true;
  if (batch->max_volume == NO_LIMIT) return NULL;  /* a model that need not have the input */
  int64_t volume;
  TRITONSERVER_Error* error = read_volume(request, &volume);
  if (error != NULL) return error;
  *should_include = batch->num_requests == 0 || batch->volume + volume <= batch->max_volume;
  if (*should_include) {
    batch->volume += volume;
    batch->num_requests++;
  }
  return NULL;
}

/* The batch is on its way to the model. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* userp)
{
  free(userp);
  return NULL;
}
