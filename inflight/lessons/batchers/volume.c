/* Batches by volume: joins.h, beside this file, has a Batch, and joins() says who may join it.
 *
 * Triton's max_batch_size counts items, the first dimension of the inputs. Items differ: one may have ten tokens and
 * the next a thousand, and a batch takes as long, or as much memory, as the tokens in it. With this library, Triton's
 * dynamic batcher asks here before it lets a request into a batch, and here the units of its input `work` are counted.
 *
 * One thing Triton does not tell. A batch that is formed and waits for the model may still grow, and for that Triton
 * begins a new count here, so that the whole may exceed the limit. A batch of a preferred size does not grow as long as
 * there is no queue delay. So where the limit must hold, make every size a preferred one:
 *
 *     dynamic_batching { preferred_batch_size: [ 1, 2, 3, 4, 5, 6, 7, 8 ] }
 */
#include <stdlib.h>
#include <string.h>

#include "triton.h"

#include "joins.h"

/* The model is loaded: nothing is kept for all its batches. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model)
{
  (void)model;
  *batcher = NULL;
  return NULL;
}

/* The model is unloaded. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher)
{
  (void)batcher;
  return NULL;
}

/* A batch is begun: it is empty. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** userp)
{
  (void)batcher;
  *userp = calloc(1, sizeof(Batch));
  return *userp == NULL ? TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "out of memory") : NULL;
}

/* Length of a request: the INT32 of its input `work`; these requests have one item each. */
static TRITONSERVER_Error* length_of(TRITONBACKEND_Request* request, int64_t* length)
{
  TRITONBACKEND_Input* input;
  const void* buffer;
  uint64_t size;
  int memory_type = 0;
  int64_t memory_type_id = 0;
  int32_t value = 0;
  TRITONSERVER_Error* error = TRITONBACKEND_RequestInput(request, "work", &input);
  if (error == NULL) error = TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &memory_type, &memory_type_id);
  if (error == NULL && size >= sizeof value) memcpy(&value, buffer, sizeof value);
  *length = value;
  return error;
}

/* May this request join? */
TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request* request, void* userp,
                                                           bool* should_include)
{
  Batch* batch = userp;
  int64_t length;
  *should_include = false;
  TRITONSERVER_Error* error = length_of(request, &length);
  if (error != NULL) return error;
  *should_include = joins(batch, length);
  return NULL;
}

/* The batch is on its way to the model. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* userp)
{
  free(userp);
  return NULL;
}
