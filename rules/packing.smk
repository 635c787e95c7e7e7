rule packing:
    """Cut token shards into sequences and merge their counts."""
    input:
        DAG.inputs("packing"),
    output:
        DAG.stamp("packing"),
    log:
        DAG.log("packing"),
    benchmark:
        DAG.benchmark("packing")
    conda:
        "../environment.yml"
    threads: DAG.threads("packing")
    resources:
        mem_mb=DAG.memory("packing"),
    shell:
        "{JOB} --plan {PLAN} --node packing --work {wildcards.work} > {log:q} 2>&1"
