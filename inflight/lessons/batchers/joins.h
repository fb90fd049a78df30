/* Who may join a batch: the sum of its lengths stays within LIMIT. */
#define LIMIT 12

/* A batch that is being formed; it begins with zeros. */
typedef struct {
  int64_t volume;
  int64_t num_requests;
} Batch;

/* May a request of this length join? The first may always: somebody must serve it. */
static bool joins(Batch* batch, int64_t length)
{
  if (batch->num_requests > 0 && batch->volume + length > LIMIT) return false;
  batch->volume += length;
  batch->num_requests++;
  return true;
}
