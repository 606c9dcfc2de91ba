"""The engine that decides delivery to polls: who may read, what is next, what is in flight.

Theory of operation. A poll of a consumer group is one request (`requests.PollRequest`). The engine
(`engine.PollEngine`) finds its group, has `leases` say which partitions its consumer id holds,
takes what comes next of each (`reader.PollReader`) and answers, or keeps the poll as a row until
something comes or its time is over. What was answered is in flight until the poll is done, or its
client is gone: then it is free at once.

A reader belongs to one partition of a group and outlives its polls. It keeps the entry that polls
are in the middle of, opened, and what was read ahead, so that the next poll costs what it takes and
not what the entry holds. Where it stands follows from the cursor at each poll, so that nothing has
to be kept in step with it. What all readers keep has a bound; the one that was used the longest ago
is dropped first.

An acknowledgement counts in memory at once and is durable with a commit group soon after; nothing
waits for that. The next poll of the group goes on behind it meanwhile. After a crash in between
what was acknowledged comes again.

There is no protocol's byte in here, and no thread: everything runs on the event loop.
"""
