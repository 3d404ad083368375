cimport cython

from braidmq.lane.records.records cimport Record


@cython.locals(merged=list, count=Py_ssize_t, places=list, best=Py_ssize_t, best_timestamp="long long", run=Py_ssize_t,
               records=list, place=Py_ssize_t, record=Record, limit="long long", shard=object)
cpdef list merge_runs(list runs, list shards, long long upto)


@cython.locals(missing=set, previous=object, place=Py_ssize_t, pair=tuple, shard=object, record=Record)
cpdef note_last(list records, dict last)
