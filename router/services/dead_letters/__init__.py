"""Dead-letter topics: what waits in them, publishing it once more, discarding it.

Theory of operation. A dead letter is an ordinary message of a topic whose name ends in `.dlq`
(pipelines) or `-DLQ` (Pulsar's clients), or of the topic that `consume.dead_letter_topic` names;
its properties say where it was and why it came here. Which of them are done with is the position of
a group of the router's own, `GROUP`, that is never polled: a dead letter that was requeued or
discarded is acknowledged for it alone, so the rest of the topic, its retention and its other groups
stay as they are, and `/topics/{topic}/groups` shows how many wait.

Requeueing publishes first and acknowledges then, some dead letters at a time. A stop between the
two publishes those dead letters once more, under the same producer's name and number: a store that
deduplicates (embedded, Kafka, Apache Pulsar with its deduplication) keeps them once. The
alternative, acknowledging first, would lose what was not published yet.
"""
