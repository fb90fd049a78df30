/* Batches by padded volume: number of requests times the longest stays within LIMIT.
 */
#include <stdlib.h>
#include <string.h>

#include "triton.h"

#define LIMIT 24

/* What is kept of a batch while it is formed. */
typedef struct {
  int64_t longest;
  int64_t num_requests;
} Batch;

/* Length of a request: the one INT32 of its input `work`. */
static TRITONSERVER_Error*
length_of(TRITONBACKEND_Request* request, int64_t* length)
{
  TRITONBACKEND_Input* input;
  const void* buffer;
  uint64_t size;
  int memory_type = 0;
  int64_t memory_type_id = 0;
  int32_t value = 0;
  TRITONSERVER_Error* error = TRITONBACKEND_RequestInput(request, "work", &input);
  if (error == NULL)
    error = TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &memory_type,
                                      &memory_type_id);
  if (error == NULL && size >= sizeof value) memcpy(&value, buffer, sizeof value);
  *length = value;
  return error;
}

/* The model is loaded: nothing is kept for all its batches. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher,
                                     TRITONBACKEND_Model* model)
{
  (void)model;
  *batcher = NULL;
  return NULL;
}

/* The model is unloaded. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher)
{
  (void)batcher;
  return NULL;
}

/* A batch is begun: it is empty. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher,
                                   void** userp)
{
  (void)batcher;
  *userp = calloc(1, sizeof(Batch));
  if (*userp == NULL)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "out of memory");
  return NULL;
}

/* May this request join? One that is longer than LIMIT has a batch of its own. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request* request, void* userp,
                                       bool* should_include)
{
  Batch* batch = userp;
  int64_t length;
  *should_include = false;
  TRITONSERVER_Error* error = length_of(request, &length);
  if (error != NULL) return error;
  int64_t longest = length > batch->longest ? length : batch->longest;
  *should_include = batch->num_requests == 0 ||
                    longest * (batch->num_requests + 1) <= LIMIT;
  if (*should_include) {
    batch->longest = longest;
    batch->num_requests++;
  }
  return NULL;
}

/* The batch is on its way to the model. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatchFinalize(void* userp)
{
  free(userp);
  return NULL;
}
