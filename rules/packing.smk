rule packing:
    """Cut token shards into sequences and merge their counts."""
    input:
        RUN.inputs("packing"),
    output:
        RUN.stamp("packing"),
    log:
        RUN.log("packing"),
    benchmark:
        RUN.benchmark("packing")
    conda:
        "../environment.yml"
    threads: RUN.threads("packing")
    resources:
        **RUN.resources("packing"),
    params:
        job=JOB,
    shell:
        "{params.job} --node packing --work {wildcards.work} > {log:q} 2>&1"
